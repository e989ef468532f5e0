"""Rooms that have ended: a bounded memory, so that what comes late about them is recognised."""

from tandem.core.ids import Room

LIMIT = 65_536
"""Ended rooms remembered; at 1,000 requests a second this spans a minute, longer than anything late can be."""


class Recent:
    """The last `limit` rooms, oldest dropped first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._rooms: dict[Room, None] = {}
        self._limit = limit

    def add(self, room: Room) -> None:
        """Remember a room."""
        self._rooms[room] = None
        if len(self._rooms) > self._limit:
            del self._rooms[next(iter(self._rooms))]

    def __contains__(self, room: Room) -> bool:
        return room in self._rooms
