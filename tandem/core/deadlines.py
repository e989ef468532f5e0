"""When each request's time is up."""

import heapq

from tandem.core.ids import Room

SLACK = 64
"""Dead entries that the heap may always keep, besides as many as there are living ones."""


class Deadlines:
    """A heap. A room that is dropped leaves its entry behind until that comes up, or until there are too many."""

    def __init__(self) -> None:
        self._due: dict[Room, int] = {}
        self._heap: list[tuple[int, Room]] = []

    def add(self, room: Room, deadline_ms: int) -> None:
        """A room's time is up at `deadline_ms`. A room is added once."""
        self._due[room] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, room))

    def drop(self, room: Room) -> None:
        """A room has ended. Its entry goes with all dead ones once they outnumber the others."""
        self._due.pop(room, None)
        if len(self._heap) > 2 * len(self._due) + SLACK:
            self._heap = sorted((deadline_ms, room) for room, deadline_ms in self._due.items())

    def late(self, now_ms: int) -> list[Room]:
        """The rooms whose time is up, earliest first; they are dropped."""
        rooms = []
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            _, room = heapq.heappop(self._heap)
            del self._due[room]
            rooms.append(room)
        return rooms

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap and self._heap[0][1] not in self._due:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
