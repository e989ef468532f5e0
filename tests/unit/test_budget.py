"""Who may be given pages: rules one by one, and against a naive count."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.core.budget import Budget
from tandem.core.ids import RequestId, Room

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))


def budget(*left: int) -> Budget:
    """Requests that may still ask for so many pages, oldest first."""
    made = Budget()
    for number, pages in enumerate(left, start=1):
        made.admit(Room(RequestId(number), 1), pages)
    return made


def test_who_comes_alone_must_be_able_to_grow_to_its_end():
    assert budget().admits(5, held=2, left=3)
    assert not budget().admits(4, held=2, left=3)


def test_the_oldest_can_still_grow_to_its_end():
    assert budget(4).admits(6, held=2, left=1)
    assert not budget(4).admits(5, held=2, left=1)


def test_a_newcomer_need_not_fit_to_its_end():
    """It may finish when others have; if not, it is the first to make room."""
    assert budget(1).admits(4, held=2, left=60)


def test_everyone_can_still_take_the_next_page():
    assert budget(1, 9, 9).admits(5, held=1, left=9)
    assert not budget(1, 9, 9).admits(4, held=1, left=9)


def test_who_has_grown_to_its_end_needs_no_next_page():
    assert budget(0, 0, 0).admits(1, held=1, left=0)


def test_growth_and_endings_are_counted():
    made = budget(2, 1)
    made.grew(A)
    made.grew(A)
    assert made.admits(3, held=1, left=1)
    assert not made.admits(2, held=1, left=1)
    made.leave(B)
    made.leave(B)
    assert made.admits(2, held=1, left=1)


def test_the_order_is_that_of_admission():
    made = Budget()
    assert [made.admit(room, 1) for room in (B, C, A)] == [1, 2, 3]
    made.leave(C)
    assert list(made.latest_first()) == [A, B]
    assert made.admit(C, 1) == 4, "who comes back is the last"
    assert list(made.latest_first()) == [C, A, B]


def test_every_change_of_the_order_is_news_to_those_who_wait():
    made = budget(2, 2)
    before = made.changes
    made.leave(A)
    made.leave(A)
    assert made.changes == before + 1


CLAIMS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=8)
"""Pages held and left, oldest first."""


@given(CLAIMS)
def test_what_fits_to_everybodys_end_is_always_admitted(claims: list[tuple[int, int]]):
    made = Budget()
    available = sum(held + left for held, left in claims)
    for number, (held, left) in enumerate(claims):
        assert made.admits(available, held, left)
        made.admit(Room(RequestId(number), 1), left)
        available -= held


OPERATIONS = st.lists(st.tuples(st.sampled_from(["admit", "grew", "grew", "leave"]), st.integers(0, 5)), max_size=60)


@given(OPERATIONS, st.integers(0, 20), st.integers(1, 4), st.integers(0, 4))
def test_any_history_agrees_with_a_naive_count(operations: list[tuple[str, int]], available: int, held: int, left: int):
    made, naive = Budget(), dict[Room, int]()
    for name, number in operations:
        room = Room(RequestId(number), 1)
        if name == "admit" and room not in naive:
            naive[room] = number
            made.admit(room, number)
        elif name == "grew" and naive.get(room):
            naive[room] -= 1
            made.grew(room)
        elif name == "leave":
            naive.pop(room, None)
            made.leave(room)
    after = [*naive.values(), left]
    enough = available - held >= max(after[0], sum(1 for each in after if each))
    assert made.admits(available, held, left) == enough
    assert len(made) == len(naive)
