"""Goodput of a router under too much load: answers within their latency bound, at 0.5 to 3 times the capacity.

The groups are modelled, in a process of their own: what they can take is known. The load comes from a second process
and does not wait for answers. Every request that was sent counts; one that was refused is not met.
"""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from bench.beside import module
from bench.modelled_groups import Modelled, Where
from bench.open_loop import Offered, Outcome, run
from bench.rows import Row, row

BENCH = "goodput"
LOADS = (0.5, 1.0, 2.0, 3.0)
SLO_TTFT_S = 1.0
SLO_TPOT_S = 0.05
"""What an answer must keep to be of use: seconds to its first token, and for each token after it."""
QUEUE_TIMEOUT_S = 0.5
"""As an operator sets it who has promised SLO_TTFT_S: whoever would wait longer is told so at once."""
PATIENCE_S = 20.0
BAR = ">= 0.9"


class Served(msgspec.Struct, frozen=True):
    """Where the router listens."""

    url: str


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    seconds: float
    loads: tuple[float, ...]


FULL = Size(15.0, LOADS)
QUICK = Size(4.0, (1.0, 3.0))


def measure(*, quick: bool, seed: int) -> list[Row]:
    """With the queue, and without it. Raises Unready when the router does not come up."""
    size = QUICK if quick else FULL
    rows = []
    with Console(stderr=True).status("measuring"):
        for case, modelled in (("", Modelled()), ("groups that tell nothing: ", Modelled(seen=False))):
            goodputs, sheds = {}, {}
            for times in size.loads:
                outcomes = offer(modelled, times, size.seconds, seed)
                goodputs[times] = sum(map(met, outcomes)) / size.seconds
                sheds[times] = sum(outcome.status in (408, 429) for outcome in outcomes) / len(outcomes)
            rows += rows_of(case, goodputs, sheds, modelled, judged=not case)
    return rows


def rows_of(
    case: str, goodputs: dict[float, float], sheds: dict[float, float], modelled: Modelled, *, judged: bool
) -> list[Row]:
    """The last load is judged against the best of all."""
    best, last = max(goodputs.values()), max(goodputs)
    slo = f"first token <= {SLO_TTFT_S:g} s, then <= {SLO_TPOT_S * 1000:g} ms a token"
    rows = []
    for times, goodput in goodputs.items():
        title = f"{case}{times:g}x of {modelled.capacity_per_s:.0f}/s, {slo}; {sheds[times]:.0%} refused"
        bar = BAR if judged and times == last else ""
        rows.append(row(BENCH, title, goodput, "requests/s", bar=bar, reference=("the best of all loads", best)))
    return rows


def met(outcome: Outcome) -> bool:
    """Whether it was of use to its client."""
    if outcome.status != 200 or not outcome.tokens:
        return False
    tpot_s = (outcome.last_s - outcome.first_s) / max(1, outcome.tokens - 1)
    return outcome.first_s <= SLO_TTFT_S and tpot_s <= SLO_TPOT_S


def offer(modelled: Modelled, times: float, seconds: float, seed: int) -> list[Outcome]:
    """What becomes of all requests at so many times the capacity."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        groups = stack.enter_context(module("bench.modelled_groups", modelled, Where, directory / "groups.log"))
        router = stack.enter_context(module("bench.goodput_router", groups, Served, directory / "router.log"))
        url, per_s = urlsplit(router.url), times * modelled.capacity_per_s
        assert url.hostname is not None
        assert url.port is not None
        return run(Offered(url.hostname, url.port, per_s, seconds, modelled.tokens, seed, PATIENCE_S))
