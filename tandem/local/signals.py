"""Signals and words of other threads, as something a selector can wait for."""

import contextlib
import queue
import signal
import socket
from types import FrameType, TracebackType
from typing import Generic, TypeVar

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUDGE = b"\0"
"""No signal has the number 0."""

T = TypeVar("T")


class Wakeup(Generic[T]):
    """A context for the main thread: within it the STOPPING signals only make `fd` readable, as `put` does.

    After it they are ignored: the process is about to end, and impatience must not change its exit status.
    """

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)
        self.fd = self._here.fileno()

    def put(self, word: T) -> None:
        """From any thread, at any time."""
        self._words.put(word)
        with contextlib.suppress(OSError):  # full: it wakes up anyway; closed: nobody waits any more
            self._there.send(NUDGE)

    def take(self) -> tuple[list[signal.Signals], list[T]]:
        """The signals and words that came since."""
        try:
            numbers = self._here.recv(4096)
        except BlockingIOError:
            numbers = b""
        words = []
        while not self._words.empty():
            words.append(self._words.get_nowait())
        return [signal.Signals(number) for number in numbers if number], words

    def __enter__(self) -> "Wakeup[T]":
        signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        for number in STOPPING:
            signal.signal(number, _noted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._here.close()
        self._there.close()


def _noted(number: int, frame: FrameType | None) -> None:
    """Its number is in the socket already; without a handler it would end the process."""
