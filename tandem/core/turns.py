"""Requests that wait for pages get them in turn; nobody overtakes the one whose turn it is."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from tandem.core.ids import Room


class Waiting(Protocol):
    """What can wait."""

    @property
    def room(self) -> Room: ...


R = TypeVar("R", bound=Waiting)


class Line(Protocol[R]):
    """Where they wait."""

    @property
    def head(self) -> R | None:
        """Whose turn it is."""
        ...

    def discard(self, request: R) -> None: ...


class Turns:
    """Remembers who was refused, so that nobody is tried again before there is news for it."""

    def __init__(self) -> None:
        self._refused: tuple[Room, tuple[int, ...]] | None = None  # who was, and what would be news to it

    def served(self, line: Line[R], allocate: Callable[[R], bool], news: Callable[[], tuple[int, ...]]) -> Iterator[R]:
        """Each has what it waited for, and has left the line.

        `allocate` gives a request all it needs, or nothing and False. `news` counts what may help who was refused.
        """
        while (request := line.head) is not None and (request.room, news()) != self._refused:
            if not allocate(request):
                self._refused = request.room, news()
                return
            line.discard(request)
            yield request
