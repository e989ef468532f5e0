"""A thread-safe queue that a poller can wait on: how other threads hand events to the tick loop."""

import os
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadInbox(Generic[T]):
    """Many threads put, one takes. `fd` is readable whenever something may wait (an eventfd, Linux)."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        """Add an item and wake the taker."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the taker without an item."""
        os.eventfd_write(self.fd, 1)

    def take(self) -> list[T]:
        """Everything that waits, oldest first. The wake-up is taken first, so none is lost."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
