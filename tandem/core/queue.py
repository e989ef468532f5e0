"""Requests in the order in which they are served."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar


class Place(NamedTuple):
    """Where a request stands in a queue: smaller goes first. Priority and ageing are in it, so it never changes."""

    due_ms: int
    number: int  # of its arrival


class Placed(Protocol):
    """What can stand in a queue."""

    @property
    def place(self) -> Place: ...


R = TypeVar("R", bound=Placed)


class Queue(Generic[R]):
    """Who is due first goes first, and of those who came first."""

    def __init__(self) -> None:
        self._waiting: list[R] = []

    @property
    def head(self) -> R | None:
        """Whose turn it is."""
        return self._waiting[0] if self._waiting else None

    def add(self, request: R) -> None:
        """Put a request at its place, also before those that are here already."""
        insort(self._waiting, request, key=_place)

    def discard(self, request: R) -> None:
        """Take a request out, if it is here."""
        index = bisect_left(self._waiting, request.place, key=_place)
        if index < len(self._waiting) and self._waiting[index] is request:
            del self._waiting[index]

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)


def _place(request: Placed) -> Place:
    return request.place
