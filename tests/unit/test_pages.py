"""The page allocator against a naive model, and its rules one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import IllegalTransition
from tandem.core.ids import RequestId, Room
from tandem.core.pages import PagePool

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))


def test_pages_are_given_as_runs_of_neighbours():
    pool = PagePool(10, 16)
    assert pool.allocate(A, 3) == (0, 1, 2)
    assert pool.allocate(B, 2) == (3, 4)


def test_a_hole_that_fits_is_used_before_the_large_run():
    pool = PagePool(10, 16)
    pool.allocate(A, 2)
    pool.allocate(B, 2)
    pool.release(A)
    assert pool.allocate(C, 2) == (0, 1)


def test_a_request_that_fits_no_hole_takes_the_longest_run_first():
    pool = PagePool(8, 16)
    pool.allocate(A, 1)
    pool.allocate(B, 2)
    pool.allocate(C, 1)
    pool.release(A)
    assert pool.allocate(A, 5) == (4, 5, 6, 7, 0)


def test_more_pages_of_one_room_add_up():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.allocate(A, 2)
    assert pool.held(A) == (0, 1, 2)


def test_quarantined_pages_are_given_to_nobody():
    pool = PagePool(4, 16)
    pool.allocate(A, 3)
    pool.quarantine(A)
    assert pool.counts() == {"free": 1, "owned": 0, "quarantined": 3}
    assert pool.allocate(B, 1) == (3,)
    with pytest.raises(IllegalTransition, match="0 are free"):
        pool.allocate(C, 1)


def test_a_room_in_quarantine_gets_no_pages():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.quarantine(A)
    with pytest.raises(IllegalTransition):
        pool.allocate(A, 1)


def test_release_gives_back_what_is_owned_and_what_is_quarantined():
    pool = PagePool(4, 16)
    for room in (A, B):
        pool.allocate(room, 2)
    pool.quarantine(A)
    pool.release(A)
    pool.release(B)
    pool.audit()
    assert pool.free == 4
    assert pool.allocate(C, 4) == (0, 1, 2, 3)


def test_releasing_twice_frees_nothing_twice():
    pool = PagePool(2, 16)
    pool.allocate(A, 1)
    pool.release(A)
    pool.release(A)
    pool.audit()
    assert pool.free == 2


def test_every_release_is_news_to_those_who_wait():
    pool = PagePool(2, 16)
    pool.allocate(A, 1)
    before = pool.freed_at
    pool.release(A)
    assert pool.freed_at > before


def test_pages_given_are_drained_once_and_in_order():
    pool = PagePool(4, 16)
    pool.allocate(A, 2)
    pool.allocate(B, 1)
    assert pool.drain_given() == [0, 1, 2]
    assert pool.drain_given() == []


def test_lost_pages_are_noticed():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool.free -= 1
    with pytest.raises(IllegalTransition, match="not conserved"):
        pool.check()


def test_a_doubled_page_is_noticed():
    pool = PagePool(4, 16)
    pool.allocate(A, 1)
    pool._owned[A][0] = 3
    pool.check()
    with pytest.raises(IllegalTransition, match="lost or doubled"):
        pool.audit()


class NaivePool:
    """Sets of page numbers; where `PagePool` prefers a run, any choice of free pages is right."""

    def __init__(self, pages: int) -> None:
        self.free = set(range(pages))
        self.owned: dict[Room, set[int]] = {}
        self.quarantined: dict[Room, set[int]] = {}

    def allocate(self, room: Room, pages: tuple[int, ...]) -> None:
        assert len(set(pages)) == len(pages)
        assert set(pages) <= self.free
        self.free -= set(pages)
        self.owned.setdefault(room, set()).update(pages)

    def quarantine(self, room: Room) -> None:
        self.quarantined.setdefault(room, set()).update(self.owned.pop(room, set()))

    def release(self, room: Room) -> None:
        self.free |= self.owned.pop(room, set()) | self.quarantined.pop(room, set())


NAMES = st.sampled_from(["allocate"] * 3 + ["quarantine", "release"])
OPERATIONS = st.tuples(NAMES, st.integers(0, 5), st.integers(0, 9))


@given(st.integers(0, 24), st.lists(OPERATIONS, max_size=60))
def test_any_operations_agree_with_the_naive_model(size: int, operations: list[tuple[str, int, int]]):
    pool, naive = PagePool(size, 16), NaivePool(size)
    for name, number, count in operations:
        room = Room(RequestId(number), 1)
        if name == "allocate":
            if count > len(naive.free) or room in naive.quarantined:
                with pytest.raises(IllegalTransition):
                    pool.allocate(room, count)
            else:
                naive.allocate(room, pool.allocate(room, count))
        else:
            getattr(pool, name)(room)
            getattr(naive, name)(room)
        pool.audit()
        assert pool.free == len(naive.free)
        assert set(pool.held(room)) == naive.owned.get(room, set()) | naive.quarantined.get(room, set())


@given(st.lists(OPERATIONS, max_size=40))
def test_the_same_operations_give_the_same_pages(operations: list[tuple[str, int, int]]):
    given_pages = [], []
    for pages in given_pages:
        pool = PagePool(16, 16)
        for name, number, count in operations:
            room = Room(RequestId(number), 1)
            if name != "allocate":
                getattr(pool, name)(room)
            elif count <= pool.free and room not in pool._quarantined:
                pages.append(pool.allocate(room, count))
    assert given_pages[0] == given_pages[1]
