"""The bounded memory of ended rooms."""

from tandem.core.ids import RequestId, Room
from tandem.core.recent import Recent


def room(number: int, attempt: int = 1) -> Room:
    return Room(RequestId(number), attempt)


def test_an_ended_room_is_remembered_and_its_next_attempt_is_another():
    recent = Recent()
    recent.add(room(1))
    assert room(1) in recent
    assert room(1, 2) not in recent


def test_the_oldest_goes_first():
    recent = Recent(limit=3)
    for number in range(5):
        recent.add(room(number))
    assert [number for number in range(5) if room(number) in recent] == [2, 3, 4]


def test_a_room_that_ends_twice_takes_one_place():
    recent = Recent(limit=2)
    for number in (1, 1, 1, 2):
        recent.add(room(number))
    assert room(1) in recent
    assert room(2) in recent
