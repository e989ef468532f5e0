"""Coalescing moves exactly the same bytes, in as few blocks as can be."""

from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.transports.blocks import Block, batches, coalesce

pages = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique_by=lambda pair: pair[1], max_size=30)


def as_blocks(pairs: list[tuple[int, int]], size: int) -> list[Block]:
    return [(1000 + source * size, 9000 + destination * size, size) for source, destination in pairs]


def moves(blocks: list[Block]) -> set[tuple[int, int]]:
    return {(source + at, destination + at) for source, destination, length in blocks for at in range(length)}


@given(pages, st.integers(1, 5))
def test_the_same_bytes_move(pairs: list[tuple[int, int]], size: int) -> None:
    blocks = as_blocks(pairs, size)
    merged = coalesce(blocks)
    assert moves(merged) == moves(blocks)
    assert sum(length for _, _, length in merged) == sum(length for _, _, length in blocks)


@given(pages, st.integers(1, 5))
def test_no_two_of_the_result_could_still_merge(pairs: list[tuple[int, int]], size: int) -> None:
    merged = coalesce(as_blocks(pairs, size))
    ends = {(source + length, destination + length) for source, destination, length in merged}
    assert not ends & {(source, destination) for source, destination, _ in merged}


@given(pages)
def test_the_order_given_does_not_matter(pairs: list[tuple[int, int]]) -> None:
    blocks = as_blocks(pairs, 4)
    assert coalesce(blocks) == coalesce(blocks[::-1])


def test_a_run_of_pages_becomes_one_block() -> None:
    assert coalesce(as_blocks([(n, n + 3) for n in range(1000)], 16)) == [(1000, 9048, 16_000)]


def test_neighbours_at_one_end_only_stay_apart() -> None:
    assert len(coalesce([(0, 100, 10), (10, 200, 10), (50, 110, 10)])) == 3


@given(pages, st.integers(1, 7))
def test_batches_hold_everything_within_the_limit(pairs: list[tuple[int, int]], limit: int) -> None:
    blocks = as_blocks(pairs, 4)
    parts = list(batches(blocks, limit))
    assert [block for part in parts for block in part] == blocks
    assert all(len(part) <= limit for part in parts)
