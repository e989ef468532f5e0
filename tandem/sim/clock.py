"""Virtual time: a queue of things to happen, in microseconds, and channels, each in order on its own."""

import heapq
import math
import random
from collections.abc import Callable

Action = Callable[[], object]
Span = tuple[int, int]
"""Least and most, in microseconds."""


def stream(seed: int, name: str) -> random.Random:
    """A random stream of its own for each purpose, so that drawing more in one does not shift another."""
    return random.Random(f"{seed}/{name}")


def between(rng: random.Random, span: Span) -> int:
    """Any of the span, at a third of `randint`'s cost: half of what a run draws are delays."""
    least, most = span
    return least + int(rng.random() * (most - least + 1))


class Clock:
    """The event queue. Things due at the same time happen in the order they were put in."""

    def __init__(self) -> None:
        self.now_us = 0
        self._order = 0
        self._queue: list[tuple[int, int, Action]] = []

    def at(self, time_us: int, action: Action) -> None:
        """Let something happen, not before now."""
        self._order += 1
        heapq.heappush(self._queue, (max(time_us, self.now_us), self._order, action))

    def after(self, delay_us: int, action: Action) -> None:
        """Let something happen later."""
        self.at(self.now_us + delay_us, action)

    def advance(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if not self._queue:
            return False
        self.now_us, _, action = heapq.heappop(self._queue)
        action()
        return True

    def run(self, until_us: int | None, most: int) -> bool:
        """Let everything happen that is due before a time, or until nothing is left; False for more than `most`."""
        queue = self._queue
        for _ in range(most):
            if not queue or (until_us is not None and queue[0][0] >= until_us):
                return True
            self.now_us, _, action = heapq.heappop(queue)
            action()
        return False

    def alarm(self, time_us: int, action: Action) -> "Alarm":
        """The same as `at`, and it can be called off."""
        self.at(time_us, action)
        return Alarm(self._queue, (max(time_us, self.now_us), self._order, action))


class Alarm:
    """One thing to happen that can be called off, as if it had never been planned."""

    def __init__(self, queue: list[tuple[int, int, Action]], entry: tuple[int, int, Action]) -> None:
        self._queue = queue
        self._entry = entry

    def cancel(self) -> None:
        """Does nothing once it has happened."""
        if self._entry in self._queue:
            self._queue.remove(self._entry)
            heapq.heapify(self._queue)


class Seconds:
    """The clock as the router's event loop would show it. Its timers are a little late, as in a busy loop."""

    def __init__(self, clock: Clock, late_us: Callable[[], int]) -> None:
        self._clock = clock
        self._late_us = late_us

    def time(self) -> float:
        """Now."""
        return self._clock.now_us / 1_000_000

    def call_at(self, when: float, callback: Callable[[], None], /) -> Alarm:
        """What is due has come when the callback is called."""
        return self._clock.alarm(math.ceil(when * 1_000_000) + self._late_us(), callback)


class Channel:
    """First in, first out, each message with a delay of its own."""

    def __init__(self, clock: Clock, delay_us: Callable[[], int]) -> None:
        self.under_way = 0
        self._clock = clock
        self._delay_us = delay_us
        self._last_us = 0

    def send(self, deliver: Action) -> None:
        """`deliver` is called when the message arrives."""
        self.under_way += 1
        self._last_us = max(self._last_us, self._clock.now_us + self._delay_us())
        self._clock.at(self._last_us, lambda: self._arrive(deliver))

    def hold(self, until_us: int) -> None:
        """What is sent from now on arrives after a time, all in order."""
        self._last_us = max(self._last_us, until_us)

    def _arrive(self, deliver: Action) -> None:
        self.under_way -= 1
        deliver()
