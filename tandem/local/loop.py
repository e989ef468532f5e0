"""One loop that only waits: for files that can be read or written, and for the time."""

import sched
import selectors
import time
from collections.abc import Callable
from typing import TypeAlias

Timer: TypeAlias = sched.Event


class Loop:
    """Calls what was asked for, one after the other. For one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers = sched.scheduler(time.monotonic)
        self._first = -1

    def watch(self, fd: int, act: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        """Call `act` whenever this file can be read, or written."""
        self._selector.register(fd, events, act)

    def watch_first(self, fd: int, act: Callable[[], None]) -> None:
        """The same, and before anything else that happens in the same moment."""
        self._first = fd
        self.watch(fd, act)

    def forget(self, fd: int) -> None:
        """Watch it no longer; before it is closed."""
        self._selector.unregister(fd)

    def later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        """Call `act` once, after this time, unless it is cancelled before."""
        return self._timers.enter(delay_s, 0, act)

    def cancel(self, timer: Timer) -> None:
        """Of a timer that has not run."""
        self._timers.cancel(timer)

    def round(self) -> None:
        """Wait until something happens, and act."""
        timers = self._timers.queue
        left_s = max(0.0, timers[0].time - time.monotonic()) if timers else None
        happened = self._selector.select(left_s)
        for key, _ in sorted(happened, key=lambda event: event[0].fd != self._first):
            if self._selector.get_map().get(key.fd) is key:  # an earlier one of this round may have closed it
                key.data()
        self._timers.run(blocking=False)

    def close(self) -> None:
        """Give back the selector; what was watched is not closed."""
        self._selector.close()
