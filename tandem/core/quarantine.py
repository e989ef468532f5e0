"""Pages that a peer group may still touch: who waits for its word, since when, and when it is to be cut off."""

from collections.abc import Iterator
from typing import NamedTuple

from tandem.core.deadlines import Deadlines
from tandem.core.ids import Room


class Held(NamedTuple):
    """One room that has ended and whose pages are held for a peer group. `since_ms` is rank 0's time."""

    room: Room
    peer: str
    since_ms: int


class Quarantine:
    """Rooms that have ended while their peer group may still write into their pages, or be written to from them.

    They wait for its word. When that has not come within `quiesce_ms`, the group is to be fenced off, and once more
    after as long, until it has helped.
    """

    def __init__(self, quiesce_ms: int) -> None:
        self._quiesce_ms = quiesce_ms
        self._fresh: dict[Room, str] = {}  # came since time was last told
        self._held: dict[Room, Held] = {}
        self._due = Deadlines()

    def hold(self, room: Room, peer: str) -> None:
        """A room waits from now on."""
        self._fresh[room] = peer

    def drop(self, room: Room) -> None:
        """The word has come, or the fence is there. For a room that does not wait, nothing happens."""
        self._fresh.pop(room, None)
        if self._held.pop(room, None) is not None:
            self._due.drop(room)

    def overdue(self, now_ms: int) -> list[str]:
        """The groups that have kept somebody waiting for too long. One fence serves all rooms of a group."""
        for room, peer in self._fresh.items():
            self._held[room] = Held(room, peer, now_ms)
            self._due.add(room, now_ms + self._quiesce_ms)
        self._fresh.clear()
        late = self._due.late(now_ms)
        for room in late:
            self._due.add(room, now_ms + self._quiesce_ms)
        return list(dict.fromkeys(self._held[room].peer for room in late))

    @property
    def next_ms(self) -> int | None:
        """When the next one will have waited for too long."""
        return self._due.next_ms

    def __iter__(self) -> Iterator[Held]:
        """Those that waited when time was last told, longest first."""
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._fresh) + len(self._held)
