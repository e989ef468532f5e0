"""A thread-safe queue that a poller can wait on: how other threads hand events to the tick loop."""

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSED = -1


class ThreadInbox(Generic[T]):
    """Many threads put, one takes. `fd` is readable whenever something may wait (an eventfd, Linux)."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._items: deque[T] = deque()
        self._lock = threading.RLock()  # a signal handler may wake the taker, too

    def put(self, item: T) -> None:
        """Add an item and wake the taker."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the taker without an item. Nothing happens when it is closed."""
        with self._lock:
            if self.fd != CLOSED:
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
        """Nobody takes any more: give the descriptor back."""
        with self._lock:
            fd, self.fd = self.fd, CLOSED
            if fd != CLOSED:
                os.close(fd)
