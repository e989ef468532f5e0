"""Pure arithmetic on blocks to write: (source address, destination address, bytes) triples."""

from collections.abc import Iterator, Sequence

Block = tuple[int, int, int]


def coalesce(blocks: Sequence[Block]) -> list[Block]:
    """The same bytes in as few blocks as possible: neighbours at both ends become one. The order is not kept."""
    merged: list[Block] = []
    for source, destination, length in sorted(blocks, key=_lane):
        if merged:
            before, there, size = merged[-1]
            if before + size == source and there + size == destination:
                merged[-1] = (before, there, size + length)
                continue
        merged.append((source, destination, length))
    return merged


def batches(blocks: Sequence[Block], limit: int) -> Iterator[Sequence[Block]]:
    """Runs of at most `limit` blocks."""
    for start in range(0, len(blocks), limit):
        yield blocks[start : start + limit]


def _lane(block: Block) -> tuple[int, int]:
    """Sorts together what can merge: blocks that move by the same distance, in address order."""
    source, destination, _ = block
    return destination - source, source
