"""`tandem sim`: random runs of the real scheduler in virtual time, one seed after the other."""

import hashlib
import sys
import time
import traceback
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import track

from tandem.sim.run import simulate

TELL_S = 5.0


def run(seeds: range, *, show_hash: bool, tell: bool) -> int:
    """Run the seeds in order, up to the first that fails; returns the exit status. `tell` prints each run in words."""
    started_s = time.perf_counter()
    ticks = requests = aborted = 0
    digest = hashlib.sha256()
    one = ""
    for seed in told(seeds):
        try:
            result = simulate(seed, print if tell else None)
        except Exception as error:  # noqa: BLE001  whatever a seed finds is what we look for
            return failed(seed, error, whole=len(seeds) == 1)
        ticks, requests, aborted = ticks + result.ticks, requests + result.requests, aborted + result.aborted
        one = result.hash
        digest.update(f"{seed} {result.hash}\n".encode())
    passed_s = time.perf_counter() - started_s
    print(f"{len(seeds)} seeds: {requests} requests, {aborted} of them aborted, {ticks} ticks, in {passed_s:.1f} s")
    if show_hash:
        print(one if len(seeds) == 1 else digest.hexdigest()[:16])
    return 0


def failed(seed: int, error: Exception, *, whole: bool) -> int:
    """Say what broke and how to see it again."""
    if whole:
        traceback.print_exception(error)
    print(f"seed {seed} failed: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"to see it again: tandem sim --seed {seed} --tell", file=sys.stderr)
    return 1


def told(seeds: range) -> Iterable[int]:
    """The seeds, with the progress on standard error: a bar on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return track(seeds, "simulating", console=console, transient=True)
    return lines(seeds)


def lines(seeds: range) -> Iterator[int]:
    """A line every TELL_S."""
    told_s = time.monotonic()
    for done, seed in enumerate(seeds):
        if time.monotonic() > told_s + TELL_S:
            told_s = time.monotonic()
            print(f"{done} of {len(seeds)} seeds", file=sys.stderr)
        yield seed
