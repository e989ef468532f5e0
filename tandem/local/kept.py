"""One process that is kept running: what it is, whether it runs, and what its earlier ends say of its next start."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tandem.local.back_off import BackOff
from tandem.local.loop import Timer


class Process(Protocol):
    """A running process. `pidfd` becomes readable at its end."""

    pid: int
    pidfd: int

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        ...

    def reap(self) -> int:
        """Its exit status, once it has ended; negative: the signal that ended it."""
        ...

    def close(self) -> None:
        """Give back its files."""
        ...


@dataclass(eq=False)
class Kept:
    """`make` starts the process, also the first time; it may raise OSError."""

    name: str  # p0.1
    title: str  # prefill p0 rank 1
    make: Callable[[], Process]
    process: Process | None = None
    timer: Timer | None = None
    """Until it is started again."""
    started_s: float = 0.0  # monotonic
    started_ms: int = 0  # since 1970, as registry entries say it
    back_off: BackOff = field(default_factory=BackOff)

    def start(self) -> Process:
        """Start it, now. Raises OSError."""
        assert self.process is None
        self.started_s, self.started_ms = time.monotonic(), time.time_ns() // 1_000_000
        self.process = self.make()
        return self.process

    def delay_s(self) -> float:
        """It has just ended: when to start it again."""
        return self.back_off.after(time.monotonic() - self.started_s)
