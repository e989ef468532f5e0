"""Who waits for a peer's word, and when that peer is to be cut off."""

from tandem.core.ids import RequestId, Room
from tandem.core.quarantine import Held, Quarantine

A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))


def test_a_peer_is_overdue_when_one_of_its_rooms_has_waited_long_enough():
    quarantine = Quarantine(quiesce_ms=100)
    quarantine.hold(A, "p0")
    assert quarantine.overdue(50) == []
    assert (quarantine.next_ms, list(quarantine)) == (150, [Held(A, "p0", 50)])
    assert quarantine.overdue(149) == []
    assert quarantine.overdue(150) == ["p0"]


def test_one_fence_serves_all_rooms_of_a_peer_and_no_others():
    quarantine = Quarantine(quiesce_ms=100)
    for room, peer in ((A, "p0"), (B, "p1"), (C, "p0")):
        quarantine.hold(room, peer)
    quarantine.overdue(0)
    assert quarantine.overdue(100) == ["p0", "p1"]


def test_a_fence_that_has_not_helped_is_asked_for_again():
    quarantine = Quarantine(quiesce_ms=100)
    quarantine.hold(A, "p0")
    quarantine.overdue(0)
    assert quarantine.overdue(120) == ["p0"]
    assert quarantine.overdue(219) == []
    assert quarantine.overdue(220) == ["p0"]
    assert list(quarantine) == [Held(A, "p0", 0)], "its age is that of its wait"


def test_a_room_whose_word_has_come_waits_no_more():
    quarantine = Quarantine(quiesce_ms=100)
    quarantine.hold(A, "p0")
    quarantine.drop(A)
    quarantine.overdue(0)
    quarantine.hold(B, "p0")
    quarantine.overdue(1)
    quarantine.drop(B)
    quarantine.drop(C)
    assert (len(quarantine), quarantine.next_ms, quarantine.overdue(1_000)) == (0, None, [])
