"""Who may be given pages: at least one request can always finish, and nobody new is let in only to be stopped at once.

Pages are given for what is computed now, not for what a request may grow to. When they run out, later requests make
room for earlier ones (`tandem.core.victims`); this rule keeps that rare.
"""

from collections.abc import Iterator

from tandem.core.ids import Room


class Budget:
    """The requests that hold pages and may ask for more, in the order of their admission."""

    def __init__(self) -> None:
        self.changes = 0  # of the order: tells one who was refused that trying again may help
        self._left: dict[Room, int] = {}  # pages each may still ask for, oldest first
        self._growing = 0  # those that may ask for any
        self._admitted = 0

    def admits(self, available: int, held: int, left: int) -> bool:
        """Whether a newcomer may hold `held` of the available pages and later ask for `left` more.

        Afterwards the oldest could still grow to its own maximum, and everyone could still take the next page.
        """
        oldest = next(iter(self._left.values()), left)
        return available - held >= max(oldest, self._growing + (left > 0))

    def admit(self, room: Room, left: int) -> int:
        """A request holds its first pages and may ask for `left` more. Returns its number in the order of admission."""
        self._left[room] = left
        self._growing += left > 0
        self._admitted += 1
        self.changes += 1
        return self._admitted

    def grew(self, room: Room) -> None:
        """A request has taken one of the pages it could ask for."""
        self._left[room] -= 1
        self._growing -= not self._left[room]

    def leave(self, room: Room) -> None:
        """A request will not grow any more, if it was going to."""
        left = self._left.pop(room, None)
        if left is not None:
            self._growing -= left > 0
            self.changes += 1

    def latest_first(self) -> Iterator[Room]:
        """Rooms against the order of admission."""
        return reversed(self._left)

    def __len__(self) -> int:
        return len(self._left)
