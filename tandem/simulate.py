"""`tandem sim`: random runs of the real scheduler in virtual time, one seed after the other."""

import hashlib
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tandem.core.errors import ConfigError
from tandem.sim.case import LAYERS, WHOLE, Variant
from tandem.sim.faults import Fault
from tandem.sim.hour import Service
from tandem.sim.run import Result, simulate
from tandem.sim.shrink import shrink
from tandem.sim.trace import read_trace

TELL_S = 5.0
AT_A_TIME = 8
"""Seeds that a process takes in one go."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a seed failed, in a form that travels between processes."""

    seed: int
    kind: str
    text: str
    trace: str


def run(seeds: range, variant: Variant = WHOLE, *, show_hash: bool = False, tell: bool = False, jobs: int = 1) -> int:
    """Run the seeds in order, up to the first that fails; returns the exit status. `tell` prints each run in words."""
    started_s = time.perf_counter()
    results: list[Result] = []
    for outcome in told(outcomes(seeds, variant, tell, jobs), len(seeds)):
        if isinstance(outcome, Failure):
            return failed(outcome, variant, whole=len(seeds) == 1, smaller=not tell)
        results.append(outcome)
    print(summary(results, time.perf_counter() - started_s))
    if show_hash:
        print(results[0].hash if len(seeds) == 1 else hash_of_hashes(results))
    return 0


def outcomes(seeds: range, variant: Variant, tell: bool, jobs: int) -> Iterator[Result | Failure]:
    """What each seed comes to, in order."""
    one = partial(attempt, variant=variant, tell=tell)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, seeds, chunksize=AT_A_TIME)


def attempt(seed: int, variant: Variant, tell: bool = False) -> Result | Failure:
    """Run one seed. Whatever it raises is what we look for."""
    try:
        return simulate(seed, variant, print if tell else None)
    except BrokenPipeError:  # whoever reads the story has had enough
        raise
    except Exception as error:  # noqa: BLE001
        return Failure(seed, type(error).__name__, str(error), "".join(traceback.format_exception(error)))


def play(trace: Path, ranks: str, seconds: int, seed: int) -> int:
    """Play a trace to a cluster in which a rank dies now and then; returns the exit status. Raises ConfigError."""
    if not (ranks or "64").isdecimal():
        raise ConfigError(f"--ranks is {ranks!r}: with --trace, give how many there are in all, such as 64")
    service, told_s = Service(read_trace(trace), int(ranks or "64"), seconds, seed), time.monotonic()

    def told(passed: int) -> None:
        nonlocal told_s
        if time.monotonic() > told_s + TELL_S:
            told_s = time.monotonic()
            print(f"{passed} of {seconds} s", file=sys.stderr)

    started_s = time.process_time()
    passed = service.play(told)
    taken_s = time.process_time() - started_s
    codes = ", ".join(f"{code} {count}" for code, count in sorted(passed.codes.items()))
    print(f"{seconds} s in {taken_s:.1f} s of CPU, {seconds / taken_s:.1f} times as fast as real time")
    print(f"{passed.requests} requests ended: {codes}; {passed.migrated} went on elsewhere after a loss")
    print(f"{passed.ticks} ticks, {passed.crashes} ranks died, hash {passed.hash}")
    return 0


# what is said


def summary(results: Sequence[Result], passed_s: float) -> str:
    """All runs in a few lines; the last one can be compared with another machine's."""
    acted: Counter[Fault] = Counter()
    for result in results:
        acted.update(result.faults)
    faults = ", ".join(f"{kind.value} {acted[kind]}" for kind in Fault if acted[kind])
    requests, aborted = sum(each.requests for each in results), sum(each.aborted for each in results)
    evicted, ticks = sum(each.evicted for each in results), sum(each.ticks for each in results)
    formed, migrated = sum(each.formed for each in results), sum(each.migrated for each in results)
    return (
        f"in {passed_s:.1f} s; faults that acted: {faults or 'none'}\n"
        f"{len(results)} seeds: {requests} requests, {aborted} aborted, {evicted} evictions, {migrated} migrations, "
        f"{ticks} ticks, {formed} groups formed anew, {sum(acted.values())} faults, hash {hash_of_hashes(results)}"
    )


def hash_of_hashes(results: Sequence[Result]) -> str:
    """Equal if all runs are equal."""
    lines = "".join(f"{result.seed} {result.hash}\n" for result in results)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def failed(failure: Failure, variant: Variant, *, whole: bool, smaller: bool) -> int:
    """Say what broke, how to see it again, and how to see it with less around it."""
    if whole:
        print(failure.trace, file=sys.stderr)
    print(f"seed {failure.seed} failed: {failure.kind}: {failure.text}", file=sys.stderr)
    print(f"to see it again: {command(failure.seed, variant)} --tell", file=sys.stderr)
    if smaller:
        smallest = shrink(failure.seed, variant, partial(fails_alike, failure))
        print(f"the smallest found: {command(failure.seed, smallest)} --tell", file=sys.stderr)
    return 1


def fails_alike(failure: Failure, variant: Variant) -> bool:
    """Whether a variant of the seed breaks the same thing."""
    outcome = attempt(failure.seed, variant)
    return isinstance(outcome, Failure) and outcome.kind == failure.kind


def told(outcomes: Iterable[Result | Failure], count: int) -> Iterable[Result | Failure]:
    """With the progress on standard error: a bar on a terminal, now and then a line elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return track(outcomes, "simulating", total=count, console=console, transient=True)
    return lines(outcomes, count)


def lines(outcomes: Iterable[Result | Failure], count: int) -> Iterator[Result | Failure]:
    """A line every TELL_S."""
    told_s = time.monotonic()
    for done, outcome in enumerate(outcomes, 1):
        if time.monotonic() > told_s + TELL_S:
            told_s = time.monotonic()
            print(f"{done} of {count} seeds", file=sys.stderr)
        yield outcome


# the flags


def command(seed: int, variant: Variant) -> str:
    """The command line of a variant; `parse_variant` reads it back."""
    words = [f"tandem sim --seed {seed}"]
    if variant.only is not None:
        words.append("--only " + (",".join(f"r{number}" for number in variant.only) or "none"))
    if variant.without:
        words.append("--without " + ",".join(kind.value for kind in variant.without))
    if variant.ranks is not None:
        words.append("--ranks {},{}".format(*variant.ranks))
    if variant.pairs is not None:
        words.append(f"--pairs {variant.pairs}")
    return " ".join(words)


def parse_variant(only: str, without: str, ranks: str, pairs: int | None) -> Variant:
    """Read the flags; an empty one leaves nothing out. Raises ConfigError."""
    return Variant(_requests(only), _kinds(without), _ranks(ranks), pairs)


def _requests(only: str) -> tuple[int, ...] | None:
    if not only:
        return None
    names = [] if only == "none" else only.split(",")
    if not all(name.startswith("r") and name[1:].isdecimal() for name in names):
        raise ConfigError(f"--only is {only!r}: give requests as the story names them, such as r3,r7, or none")
    return tuple(int(name[1:]) for name in names)


def _kinds(without: str) -> tuple[Fault, ...]:
    known = {kind.value: kind for kind in Fault}
    names = without.split(",") if without else []
    strange = [name for name in names if name not in known]
    if strange:
        raise ConfigError(f"--without is {without!r}: {strange[0]!r} is none of {', '.join(known)}")
    return tuple(known[name] for name in names)


def _ranks(ranks: str) -> tuple[int, int] | None:
    if not ranks:
        return None
    sizes = ranks.split(",")
    if len(sizes) != 2 or not all(size.isdecimal() and 1 <= int(size) <= LAYERS for size in sizes):
        raise ConfigError(f"--ranks is {ranks!r}: give both roles' sizes, from 1 to {LAYERS}, such as 2,1")
    return int(sizes[0]), int(sizes[1])
