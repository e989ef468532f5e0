"""What the tick loop does with effects that concern peers, with hands that only note it."""

from types import SimpleNamespace
from typing import Any

from tandem.core.effects import Drop, Effect, Fence
from tandem.core.events import Fenced
from tandem.core.ids import RequestId, Room
from tandem.runtime.drive import Drive
from tandem.runtime.inbox import ThreadInbox

ROOM = Room(RequestId(1), 1)


class Noted:
    """Stands for any hand: notes the calls that are made to it."""

    def __init__(self, name: str, calls: list[tuple[str, str, Any]]) -> None:
        self._name = name
        self._calls = calls

    def __getattr__(self, method: str) -> Any:
        return lambda argument: self._calls.append((self._name, method, argument))


def done(effect: Effect) -> list[tuple[str, str, Any]]:
    calls: list[tuple[str, str, Any]] = []
    drive = Drive.__new__(Drive)
    drive.links = SimpleNamespace(peers=Noted("peers", calls), posting=Noted("posting", calls))  # type: ignore[assignment]
    drive._do(effect)
    return calls


def test_a_fence_parts_with_the_group_before_it_fails_what_waits_for_it() -> None:
    """So nothing is posted to it in between."""
    assert done(Fence("p")) == [("peers", "fence", "p"), ("posting", "abandon", "p")]


def test_posts_of_a_stopped_room_are_dropped() -> None:
    assert done(Drop(ROOM)) == [("posting", "drop", ROOM)]


def test_the_end_of_a_fence_reaches_the_rank() -> None:
    drive = Drive.__new__(Drive)
    inbox: ThreadInbox[Any] = ThreadInbox()
    drive.links = SimpleNamespace(inbox=inbox, timeline=None)  # type: ignore[assignment]
    inbox.put(Fenced("p"))
    assert [*drive._thrown()] == [Fenced("p")]
    inbox.close()
