"""Commands for who works on Tandem itself. As in `cli`, they only read flags."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def sim(
    seeds: Annotated[int, Option(min=1, max=10**9, help="How many.")] = 100,
    first_seed: Annotated[int, Option(min=0, help="Where to begin.")] = 1,
    seed: Annotated[int | None, Option(min=0, help="Run this one only.")] = None,
    show_hash: Annotated[bool, Option("--hash", help="Print the hash of everything that happened, last.")] = False,
    tell: Annotated[bool, Option("--tell", help="Print what every rank takes and sends, in words.")] = False,
    only: Annotated[str, Option(help="With these requests, such as r3,r7. (Default: all.)")] = "",
    without: Annotated[str, Option(help="Without these kinds of faults, such as stalls,aborts.")] = "",
    ranks: Annotated[
        str, Option(help="Of the prefill and of the decode group, such as 2,1; of all, with --trace.")
    ] = "",
    pairs: Annotated[int | None, Option(min=1, max=4, help="Groups of each role. (Default: one or two.)")] = None,
    jobs: Annotated[int, Option(min=1, max=256, help="Processes that share the seeds.")] = 1,
    trace: Annotated[Path | None, Option(help="Play these requests instead, a .csv or .jsonl of a service.")] = None,
    hours: Annotated[float, Option(min=0.001, max=24, help="Of the trace, again and again if need be.")] = 1.0,
) -> int:
    """Run the real scheduler in virtual time, with random requests and faults. A failing seed is made smaller."""
    from tandem.simulate import parse_variant, play, run

    if trace is not None:
        return play(trace, ranks, round(3600 * hours), seed or 0)
    wanted = range(first_seed, first_seed + seeds) if seed is None else range(seed, seed + 1)
    return run(wanted, parse_variant(only, without, ranks, pairs), show_hash=show_hash, tell=tell, jobs=jobs)


def replay(
    file: Annotated[Path, Argument(help="A flight record: a rank's dump, or its file in --record-dir.")],
    other: Annotated[Path | None, Argument(help="That of another rank: show where the two part.")] = None,
    to: Annotated[int | None, Option(min=0, help="The last tick to re-execute. (Default: the record's last.)")] = None,
) -> int:
    """Re-execute what a rank has recorded, and compare the digest of every tick."""
    from tandem.replay import compare
    from tandem.replay import replay as run

    return run(file, to) if other is None else compare(file, other, to)


def bench(
    name: Annotated[str, Argument(help="Which one. (Default: list them.)")] = "",
    json_file: Annotated[Path | None, Option("--json", help="Write the rows to this file, too.")] = None,
    every: Annotated[bool, Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, Option("--quick", help="Few and short repeats: to see that it works.")] = False,
    seed: Annotated[int, Option(help="Of the random prompts.")] = 1,
) -> int:
    """Measure against a limit or a peer in the same run."""
    from bench.run import Settings, run

    return run(name, Settings(quick=quick, seed=seed), every=every, json_file=json_file)
