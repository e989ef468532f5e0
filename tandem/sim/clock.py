"""Virtual time: a queue of things to happen, in microseconds, and channels, each in order on its own."""

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]


def stream(seed: int, name: str) -> random.Random:
    """A random stream of its own for each purpose, so that drawing more in one does not shift another."""
    return random.Random(f"{seed}/{name}")


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


class Channel:
    """First in, first out, each message with a random delay of its own."""

    def __init__(self, clock: Clock, rng: random.Random, delay_us: tuple[int, int]) -> None:
        self._clock = clock
        self._rng = rng
        self._delay_us = delay_us
        self._last_us = 0

    def send(self, deliver: Action) -> None:
        """`deliver` is called when the message arrives."""
        arrival = self._clock.now_us + self._rng.randint(*self._delay_us)
        self._last_us = max(self._last_us, arrival)
        self._clock.at(self._last_us, deliver)
