"""Random faults for as long as one likes, with figures at the end: `python -m bench.faults.soak --minutes 30`."""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.faults.clients import TOKENS, Clients
from bench.faults.matrix import FAKE, LAYERS
from bench.faults.processes import Held, born, held, processes
from bench.faults.running import OUTCOME, NotSo, Running
from bench.faults.streams import FakeRequests
from bench.faults.torment import Torment

CLIENTS = 16
CROWD = 50
PROMPTS = 256
ROUND_S = 60.0
"""After each round nobody asks anything, and the cluster has to come to rest."""
FAULT_S = (1.0, 8.0)
"""Between two faults, at least and at most."""
SPARED = ("p0.0", "d1.1")
"""They live through every epoch of their groups, so that they can be seen to grow."""
GROWS = 1.5
GROWS_MIB = 32.0
GROWS_FILES = 32
"""A process that holds more than so much more than after its first round grows without bound."""
WAIT_S = 0.1
STARTED_AGAIN = "; starting it again"


class Life(msgspec.Struct):
    """One process, from the end of its first round to that of its last."""

    name: str
    first: Held
    last: Held
    rounds: int = 1

    @property
    def grew(self) -> bool:
        """More than what comes with work."""
        most_mib = self.first.mib * GROWS + GROWS_MIB
        return self.last.mib > most_mib or self.last.files > self.first.files + GROWS_FILES


class Soak:
    """Rounds of faults on one cluster. What went wrong is in `wrong`."""

    def __init__(self, cluster: Running, seed: int) -> None:
        self.wrong: list[str] = []
        self.lives: dict[tuple[int, str], Life] = {}
        self.clients = Clients(cluster, FakeRequests(LAYERS, PROMPTS, TOKENS[-1]), CLIENTS, seed)
        self._cluster = cluster
        self._rng = random.Random(seed)
        self.torment = Torment(cluster, self._rng, SPARED, lambda: self.clients.crowd(self._rng.random(), CROWD))

    def round(self, seconds: float) -> None:
        """Faults for so long, then rest. Raises NotSo when the cluster does not come to rest."""
        until_s = time.monotonic() + seconds
        before = self.clients.cut
        self.torment.begin()
        self.clients.begin(until_s)
        next_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s:
            self._cluster.catch_up()
            self.torment.wake(now_s)
            if now_s >= next_s:
                self.torment.one()
                next_s = time.monotonic() + self._rng.uniform(*FAULT_S)
            time.sleep(WAIT_S)
        self.torment.wake_all()
        self.clients.end()
        if self.clients.cut > before and not self.torment.router_hurt:
            self.wrong.append(f"{self.clients.cut - before} answers were cut, though the router was well")
        self._cluster.serves({})
        self._cluster.at_rest()
        self._look()

    def _look(self) -> None:
        """What each process holds at rest."""
        for name, pid in processes(self._cluster.process.pid).items():
            key, now = (pid, born(pid)), held(pid)
            life = self.lives.setdefault(key, Life(name, now, now, 0))
            life.last = now
            life.rounds += 1

    def judge(self) -> None:
        """After the last round: add to `wrong` what only the whole can tell."""
        self.wrong += self.clients.bad
        alive = set(processes(self._cluster.process.pid).values())
        lives = [life for (pid, _), life in self.lives.items() if pid in alive]
        self.wrong += [f"{life.name} grew from {life.first} to {life.last}" for life in lives if life.grew]
        outcomes = self.outcomes()
        twice = [rid for rid, count in Counter(rid for rid, _ in outcomes).items() if count > 1]
        if twice:
            self.wrong.append(f"more than one end: requests {', '.join(twice)}")

    def outcomes(self) -> list[tuple[str, str]]:
        """Every end that the router tells of: a request's id and how it ended."""
        found = [OUTCOME.search(line) for line in self._cluster.lines()]
        return [(one[1], one[2]) for one in found if one is not None]


def figures(soak: Soak, cluster: Running, minutes: float) -> str:
    """For people."""
    ends, outcomes = soak.clients.ends, soak.outcomes()
    again = Counter(line.split(" (pid")[0].strip() for line in cluster.lines() if STARTED_AGAIN in line)
    alive = set(processes(cluster.process.pid).values())
    lives = [life for (pid, _), life in soak.lives.items() if pid in alive]
    return "\n".join(
        [
            f"{minutes:g} minutes, {ends.total()} requests: {counts(ends)}",
            f"the router accepted {len(outcomes)}: {counts(Counter(outcome for _, outcome in outcomes))}",
            f"faults: {counts(soak.torment.done)}",
            f"{again.total()} starts again: {counts(again)}",
            *(f"{one.name}, {one.rounds} rounds: {one.first}; then {one.last}" for one in lives),
            *(f"WRONG: {wrong}" for wrong in soak.wrong),
        ]
    )


def counts(found: Counter[str]) -> str:
    """Most first."""
    return ", ".join(f"{count} {name}" for name, count in found.most_common())


def soaked(minutes: float, seed: int, *arguments: str) -> tuple[list[str], str]:
    """What was wrong, and the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="tandem-dumps-") as dumps,
        Running(*FAKE, f"--dump-dir={dumps}", *arguments) as cluster,
    ):
        soak = Soak(cluster, seed)
        until_s = time.monotonic() + 60 * minutes
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                soak.round(min(ROUND_S, left_s))
                print(f"{left_s / 60:.1f} minutes were left: {counts(soak.clients.ends)}", file=sys.stderr, flush=True)
        except NotSo as error:
            soak.wrong.append(str(error))
        soak.judge()
        if soak.wrong:
            kept = Path(tempfile.gettempdir(), f"tandem-soak-{os.getpid()}.log")
            kept.write_text("".join(cluster.lines()))
            soak.wrong.append(f"all that was logged is in {kept}")
        return soak.wrong, figures(soak, cluster, minutes)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="mooncake", choices=("mooncake", "shm"))
    options = parser.parse_args(arguments)
    wrong, text = soaked(options.minutes, options.seed, f"--disaggregation-transfer-backend={options.backend}")
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
