"""Pure arithmetic on blocks to write: (source address, destination address, bytes) triples."""

from collections.abc import Iterator, Sequence

Block = tuple[int, int, int]


def coalesce(blocks: Sequence[Block]) -> list[Block]:
    """The same bytes in as few blocks as possible: neighbours at both ends become one. The order is not kept.

    Addresses are not negative. This is most of what Tandem adds to a write of many small blocks.
    """
    merged: list[Block] = []
    distance = first = end = -1
    for lane, source, length in sorted([(there - here, here, size) for here, there, size in blocks]):
        if lane == distance and source == end:
            end += length
            continue
        merged.append((first, first + distance, end - first))
        distance, first, end = lane, source, source + length
    merged.append((first, first + distance, end - first))
    return merged[1:]  # the first one stands for none


def batches(blocks: Sequence[Block], limit: int) -> Iterator[Sequence[Block]]:
    """Runs of at most `limit` blocks."""
    for start in range(0, len(blocks), limit):
        yield blocks[start : start + limit]
