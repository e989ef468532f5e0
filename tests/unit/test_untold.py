"""Log-probabilities at rank 0: each with the token that it belongs to, whatever happens to its room meanwhile."""

import pytest

from tandem.core.ids import RequestId, Room
from tandem.core.requests import Logprobs
from tandem.core.untold import Untold

ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)
ONE, TWO, THREE = (Logprobs(-float(value)) for value in (1, 2, 3))


def everybody(_: Room) -> bool:
    return True


def test_each_token_is_told_with_its_own():
    untold = Untold()
    untold.drawn(((ROOM, (7,)), (OTHER, (8,))), (ONE, TWO), everybody)
    untold.drawn(((ROOM, (9,)),), (THREE,), everybody)
    assert [untold.take(ROOM, 3, 7), untold.take(OTHER, 5, 8), untold.take(ROOM, 4, 9)] == [ONE, TWO, THREE]
    assert not untold


def test_several_tokens_of_one_row_have_theirs_in_order():
    untold = Untold()
    untold.drawn(((ROOM, (7, 8)), (OTHER, (9,))), (ONE, TWO, THREE), everybody)
    assert [untold.take(ROOM, 1, 7), untold.take(ROOM, 2, 8), untold.take(OTHER, 1, 9)] == [ONE, TWO, THREE]


def test_who_asked_for_none_gets_none():
    untold = Untold()
    untold.drawn(((ROOM, (7,)), (OTHER, (8,))), (None, TWO), everybody)
    assert untold.take(ROOM, 1, 7) is None
    assert untold.take(OTHER, 1, 8) == TWO


def test_token_0_of_the_peer_is_told_with_what_came_with_it_even_if_it_comes_again():
    untold = Untold()
    untold.first(ROOM, ONE)
    assert untold.take(ROOM, 0, 7) == ONE
    untold.first(ROOM, ONE)
    untold.drawn(((ROOM, (8,)),), (TWO,), everybody)
    assert untold.take(ROOM, 1, 8) == TWO


def test_token_0_can_be_handed_on_after_it_was_told():
    untold = Untold()
    untold.drawn(((ROOM, (7,)),), (ONE,), everybody)
    assert untold.of_first(ROOM) is None
    assert untold.take(ROOM, 0, 7) == untold.of_first(ROOM) == ONE


def test_nothing_is_kept_of_a_room_that_has_gone():
    untold = Untold()
    untold.first(ROOM, ONE)
    untold.drawn(((ROOM, (7,)),), (ONE,), everybody)
    untold.forget(ROOM)
    untold.drawn(((ROOM, (7,)),), (ONE,), lambda room: room == OTHER)
    assert not untold
    assert untold.take(ROOM, 1, 7) is None


def test_another_token_than_was_drawn_is_our_bug():
    untold = Untold()
    untold.drawn(((ROOM, (7,)),), (ONE,), everybody)
    with pytest.raises(AssertionError):
        untold.take(ROOM, 1, 8)
