"""Requests in the order they are served."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from prefill.handoff import Handoff, Place


class Queue:
    """Who is due first goes first, and of those who came first. Priority and ageing are in a place, so it stays."""

    def __init__(self) -> None:
        self._requests: list[Handoff] = []

    def add(self, request: Handoff) -> None:
        """Put a request in its place, also in front of those that are here already."""
        insort(self._requests, request, key=_place)

    def discard(self, request: Handoff) -> None:
        """Take a request out, if it is here."""
        index = bisect_left(self._requests, request.place, key=_place)
        if index < len(self._requests) and self._requests[index] is request:
            del self._requests[index]

    @property
    def head(self) -> Handoff | None:
        """The request whose turn it is."""
        return self._requests[0] if self._requests else None

    def __iter__(self) -> Iterator[Handoff]:
        return iter(list(self._requests))

    def __len__(self) -> int:
        return len(self._requests)


def _place(request: Handoff) -> Place:
    return request.place
