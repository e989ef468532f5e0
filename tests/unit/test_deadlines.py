"""Deadlines: who is late, in which order, and that nothing is kept of those that have gone."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.core.deadlines import SLACK, Deadlines
from tandem.core.ids import RequestId, Room

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))


def test_the_earliest_comes_first_and_each_once():
    deadlines = Deadlines()
    for room, deadline_ms in ((A, 30), (B, 10), (C, 20)):
        deadlines.add(room, deadline_ms)
    assert deadlines.next_ms == 10
    assert deadlines.late(9) == []
    assert deadlines.late(20) == [B, C]
    assert deadlines.late(20) == []
    assert deadlines.next_ms == 30


def test_who_has_gone_is_never_late():
    deadlines = Deadlines()
    deadlines.add(A, 10)
    deadlines.add(B, 20)
    deadlines.drop(A)
    deadlines.drop(A)
    assert deadlines.next_ms == 20
    assert deadlines.late(99) == [B]
    assert deadlines.next_ms is None


def test_those_that_have_gone_are_not_kept_until_their_time():
    deadlines = Deadlines()
    deadlines.add(A, 1)
    for number in range(1_000):
        deadlines.add(Room(RequestId(number + 9), 1), 600_000)
        deadlines.drop(Room(RequestId(number + 9), 1))
    assert len(deadlines._heap) <= SLACK + 3


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50)), max_size=200, unique_by=lambda each: each[0]))
def test_any_history_agrees_with_a_naive_table(entries: list[tuple[int, int]]):
    deadlines, naive = Deadlines(), dict[Room, int]()
    for number, deadline_ms in entries:
        room = Room(RequestId(number), 1)
        naive[room] = deadline_ms
        deadlines.add(room, deadline_ms)
        if number % 3:
            del naive[room]
            deadlines.drop(room)
        assert deadlines.next_ms == min(naive.values(), default=None)
    late = sorted((room for room, deadline_ms in naive.items() if deadline_ms <= 25), key=lambda one: (naive[one], one))
    assert deadlines.late(25) == late
