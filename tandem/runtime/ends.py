"""A bounded list that keeps both of its ends: the first of many tell how it began, the last how it goes."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Ends(Generic[T]):
    """The first `half` items and the last `half`; those in between are dropped, and counted."""

    def __init__(self, half: int) -> None:
        self.dropped = 0
        self._half = half
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=half)

    def add(self, item: T) -> None:
        """One more, at the end."""
        if len(self._first) < self._half:
            self._first.append(item)
            return
        self.dropped += len(self._last) == self._half
        self._last.append(item)

    def items(self) -> list[T]:
        """What is kept, in order."""
        return [*self._first, *self._last]
