"""Faults at random on a running cluster: kills, stalls, orders to end, and clients that leave in crowds."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from bench.faults.processes import REGISTRY, ROUTER, SUPERVISOR, processes
from bench.faults.running import Running

MOST_STALLED_S = 6.0
"""Some stalls are noticed, others are not."""


class Torment:
    """Does one thing after another, as the generator draws. Whoever is spared is stalled, but not ended."""

    def __init__(
        self, cluster: Running, rng: random.Random, spared: tuple[str, ...], crowd: Callable[[], None]
    ) -> None:
        self.done = Counter[str]()
        self.router_hurt = False
        """Since `begin`: its clients may have been cut."""
        self._cluster = cluster
        self._rng = rng
        self._spared = spared
        self._stalled: list[tuple[float, int]] = []  # until when, and who
        self._faults: dict[str, tuple[int, Callable[[], None]]] = {
            "rank killed": (5, lambda: self._signal(self._rank(), signal.SIGKILL)),
            "rank stalled": (4, lambda: self._stall(self._rank(also_spared=True))),
            "rank told to end": (1, lambda: self._signal(self._rank(), signal.SIGTERM)),
            "registry killed": (1, lambda: self._signal(REGISTRY, signal.SIGKILL)),
            "registry stalled": (1, lambda: self._stall(REGISTRY)),
            "router stalled": (1, self._stall_router),
            "router killed": (1, self._kill_router),
            "a crowd left": (4, crowd),
        }

    def begin(self) -> None:
        """A new round."""
        self.router_hurt = False

    def one(self) -> str:
        """The next fault; its name."""
        weights = [weight for weight, _ in self._faults.values()]
        name = self._rng.choices(list(self._faults), weights)[0]
        self.done[name] += 1
        self._faults[name][1]()
        return name

    def wake(self, now_s: float) -> None:
        """Those whose stall is over."""
        for until_s, pid in self._stalled:
            if until_s <= now_s:
                _send(pid, signal.SIGCONT)
        self._stalled = [stall for stall in self._stalled if stall[0] > now_s]

    def wake_all(self) -> None:
        """The round is over."""
        self.wake(float("inf"))

    def _rank(self, *, also_spared: bool = False) -> str:
        spared = () if also_spared else self._spared
        found = processes(self._cluster.process.pid)
        ranks = sorted(name for name in found if name not in (ROUTER, REGISTRY, SUPERVISOR, *spared))
        return self._rng.choice(ranks) if ranks else ROUTER

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = processes(self._cluster.process.pid).get(name)
        if pid is not None:
            _send(pid, number)

    def _stall(self, name: str) -> None:
        pid = processes(self._cluster.process.pid).get(name)
        if pid is not None:
            _send(pid, signal.SIGSTOP)
            self._stalled.append((time.monotonic() + self._rng.uniform(0.2, MOST_STALLED_S), pid))

    def _stall_router(self) -> None:
        self.router_hurt = True
        self._stall(ROUTER)

    def _kill_router(self) -> None:
        self.router_hurt = True
        self._signal(ROUTER, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
