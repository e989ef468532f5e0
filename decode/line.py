"""Requests that wait for their first pages, each at its place."""

from decode.intake import Intake
from tandem.core.ids import Room
from tandem.core.queue import Queue


class Line:
    """A queue in which one may pause: it holds nobody up, and comes back to its place."""

    def __init__(self) -> None:
        self._ready: Queue[Intake] = Queue()
        self._pausing: dict[Room, tuple[int, Intake]] = {}  # until when (ms); all pause equally long: earliest first

    @property
    def head(self) -> Intake | None:
        """Whose turn it is."""
        return self._ready.head

    def add(self, request: Intake) -> None:
        """Put a request at its place."""
        self._ready.add(request)

    def pause(self, request: Intake, until_ms: int) -> None:
        """Put a request aside. `until_ms` must not be earlier than that of those before."""
        self._pausing[request.room] = until_ms, request

    def wake(self, now_ms: int) -> None:
        """Let those whose pause is over take their places."""
        while (wake_ms := self.wake_ms) is not None and wake_ms <= now_ms:
            _, request = self._pausing.pop(next(iter(self._pausing)))
            self._ready.add(request)

    @property
    def wake_ms(self) -> int | None:
        """The end of the first pause."""
        return next((until_ms for until_ms, _ in self._pausing.values()), None)

    def discard(self, request: Intake) -> None:
        """Take a request out, if it is here."""
        self._pausing.pop(request.room, None)
        self._ready.discard(request)

    def __len__(self) -> int:
        return len(self._ready) + len(self._pausing)
