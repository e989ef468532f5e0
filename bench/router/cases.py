"""What a router costs: CPU time for each request beside its peers', the first token's delay, many streams, memory.

The router is the real process, and so are its peers. Behind ours are mock groups, behind theirs mock workers; all say
their tokens by the same clock. Tokens travel as ids or as text that nobody has to tokenise, so that all do the same
work; what tokenising adds is a row of its own. Peers run as they are without flags, which is cache-aware, as ours is.
"""

import contextlib
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.beside import Unready, module
from bench.faults.storm import allow_files
from bench.router import first_token, workers
from bench.router.contenders import DECODE, NGINX, PREFILL, RIVALS, Contender, Said, bodies, nginx, ours, rival
from bench.router.load import Found, Held, Rounds, run
from bench.rows import Row, row
from tandem.engine.model import bundled_model_path
from tandem.engine.tokens import load_tokenizer

BENCH = "router"
AT_ONCE = 32
TOKENS = 16
EVERY_MS = 10
"""A step of decode, where CPU time is measured: all streams of a slot get their tokens together."""
STREAM_MS = 100
NEVER_MS = 3_600_000
PROMPTS, PROMPT_WORDS = 64, 100
REPLY = " The pages were sent while later layers were still computed, and none of them was lost on its way to decode."
WORDS = ("stage", "layer", "token", "page", "group", "router", "prefill", "decode", "cache", "ring", "frame", "tick")
FILES = 256
"""Beside one for each stream, in any process."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repeats: int
    requests: int  # of a turn, for CPU time
    firsts: int  # of a turn, for first tokens
    sloped: int  # requests over which memory is watched, a third at a time
    idle: int  # streams
    paced: int  # streams
    seconds: float  # of watching streams


FULL = Size(repeats=5, requests=320, firsts=400, sloped=30_000, idle=1500, paced=500, seconds=10)
QUICK = Size(repeats=1, requests=64, firsts=30, sloped=600, idle=100, paced=50, seconds=1)


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Raises Unready or CalledProcessError when our own router does not serve."""
    return measured(QUICK if quick else FULL, seed)


def measured(size: Size, seed: int) -> list[Row]:
    """So much of all cases."""
    allow_files(max(size.idle, size.paced) + FILES)
    model = str(bundled_model_path())
    said = said_by(model, random.Random(seed))
    with tempfile.TemporaryDirectory(prefix="tandem-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        us, intakes = stack.enter_context(ours(directory, model, said))
        with contextlib.ExitStack() as beside:
            peers, absent = open_peers(beside, directory, said)
            rows = cpu_rows(us, peers, absent, said, size)
        first = first_token.Order(
            port=us.port,
            body=us.bodies(tokens=first_token.TOKENS, every_ms=0, stream=True)[0],
            prompt=said.ids[0],
            prefill=(PREFILL[0], intakes[PREFILL[0]]),
            decode=(DECODE[0], intakes[DECODE[0]]),
            count=size.firsts,
        )
        rows += first_rows([first_token.run(first) for _ in range(size.repeats)])
        rows.append(slope_row(us, size))
        return [*rows, *stream_rows(us, size)]


def said_by(model: str, rng: random.Random) -> Said:
    """Words that mean nothing, and an answer of plain letters."""
    tokenizer = load_tokenizer(model)
    texts = tuple(" ".join(rng.choice(WORDS) for _ in range(PROMPT_WORDS)) for _ in range(PROMPTS))
    reply = tokenizer.encode_text(REPLY)
    detokenizer = tokenizer.detokenizer()
    ids = tuple(tuple(tokenizer.encode_text(text)) for text in texts)
    return Said(texts, ids, tuple(map(detokenizer.push, reply)), tuple(reply))


def open_peers(stack: contextlib.ExitStack, directory: Path, said: Said) -> tuple[list[Contender], dict[str, str]]:
    """The peers that serve, and why others do not, by name."""
    order = workers.Order(len(PREFILL), len(DECODE), said.reply)
    where = stack.enter_context(module("bench.router.workers", order, workers.Where, directory / "workers.log"))
    found: list[Contender] = []
    absent: dict[str, str] = {}
    for name, opening in (
        (NGINX, nginx(directory, where, said)),
        *((peer.name, rival(peer, directory, where, said)) for peer in RIVALS),
    ):
        try:
            found.append(stack.enter_context(opening))
        except Unready as error:
            absent[name] = str(error)
    return found, absent


# CPU time


@dataclass(frozen=True)
class Case:
    """One kind of request, of one contender."""

    contender: Contender
    kind: str
    bodies: tuple[str, ...]


def cpu_rows(us: Contender, peers: Sequence[Contender], absent: dict[str, str], said: Said, size: Size) -> list[Row]:
    """Ours beside each peer's, JSON and streams, and what tokenising adds to ours."""
    text = Case(us, TEXT, bodies(said.texts, tokens=TOKENS, every_ms=EVERY_MS, stream=False))
    cases = [text] + [
        Case(contender, kind, contender.bodies(tokens=TOKENS, every_ms=EVERY_MS, stream=kind == STREAM))
        for kind in (JSON, STREAM)
        for contender in (us, *peers)
    ]
    names = [(case.kind, case.contender.name) for case in cases]
    turns = dict(zip(names, turns_of(cases, size), strict=True))
    found = {name: statistics.median(values) for name, values in turns.items()}
    rows = [each for kind in (JSON, STREAM) for each in beside_peers(kind, us.name, found, absent)]
    pairs = zip(turns[TEXT, us.name], turns[JSON, us.name], strict=True)
    added = statistics.median(with_it - without for with_it, without in pairs)
    tokens = statistics.mean(map(len, said.ids))
    return [*rows, row(BENCH, f"tokenising a text of {tokens:.0f} tokens adds", added, "us")]


JSON, STREAM, TEXT = "JSON", "stream", "text"


def turns_of(cases: Sequence[Case], size: Size) -> list[list[float]]:
    """Microseconds for each request of each case. All in turn, again and again; the first round warms up."""
    figures: list[list[float]] = [[] for _ in cases]
    for turn in range(size.repeats + 1):
        for case, values in zip(cases, figures, strict=True):
            value = cpu_of(case, size.requests)
            if turn:
                values.append(value)
    return figures


def cpu_of(case: Case, count: int) -> float:
    """Microseconds for each of so many requests."""
    order = Rounds(port=case.contender.port, bodies=case.bodies, pid=case.contender.pid, at_once=AT_ONCE, count=count)
    return run(order).cpu_us / count


def beside_peers(kind: str, us: str, found: dict[tuple[str, str], float], absent: dict[str, str]) -> Iterator[Row]:
    """Ours against each peer; the cheapest that does the same work, a PD router, is the bar."""
    value = found[kind, us]
    others = {name: other for (each, name), other in found.items() if each == kind and name != us}
    pd = {name: other for name, other in others.items() if name != NGINX}
    best = min(pd, key=pd.__getitem__) if pd else ""
    case = f"{kind} of {TOKENS} tokens, c = {AT_ONCE}: CPU"
    for name, other in others.items():
        yield row(BENCH, case, value, "us", reference=(name, other), bar="<= 1.0" if name == best else "")
    for name, reason in absent.items():
        yield Row(bench=BENCH, case=case, value=value, unit="us", reference=name, reason=reason)


# first tokens


def first_rows(turns: Sequence[first_token.Found]) -> list[Row]:
    """What the router adds to what the groups need by themselves, medians of all turns."""
    rows = []
    for name, share, bar in (("p50", 50, "<= 0.5 ms"), ("p99", 99, "<= 3 ms")):
        direct = statistics.median(percentile(turn.direct_ms, share) for turn in turns)
        added = statistics.median(percentile(turn.routed_ms, share) for turn in turns) - direct
        found = row(BENCH, f"first token of a stream, {name}: added", added, "ms", bar=bar)
        rows.append(msgspec.structs.replace(found, reference="straight from the groups", reference_value=direct))
    return rows


def percentile(values: Sequence[float], share: int) -> float:
    """The value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


# memory, and many streams


def slope_row(us: Contender, size: Size) -> Row:
    """How much memory grows with requests that have ended, after those of the cases before."""
    mixed = tuple(each for stream in (False, True) for each in us.bodies(tokens=TOKENS, every_ms=0, stream=stream))
    count = size.sloped // 3
    thirds = [run(Rounds(port=us.port, bodies=mixed, pid=us.pid, at_once=AT_ONCE, count=count)) for _ in range(3)]
    grown_mib = (thirds[-1].rss_kib[1] - thirds[0].rss_kib[0]) / 1024
    per_request = grown_mib / (3 * count)
    return row(BENCH, f"memory grown in {3 * count} requests, for 10,000", per_request * 10_000, "MiB", bar="< 1 MiB")


def stream_rows(us: Contender, size: Size) -> Iterator[Row]:
    """Idle ones first, as the others leave memory behind that these would use again."""
    idle = _held(us, NEVER_MS, size.idle, size.seconds)
    title = f"{size.idle} idle streams"
    kib = (idle.rss_kib[1] - idle.rss_kib[0]) / size.idle
    yield row(BENCH, f"{title}: memory of each", kib, "KiB", bar="<= 40 KiB")
    yield row(BENCH, f"{title}: CPU", idle.cpu_us / idle.wall_s / 1e6, "cores")
    paced = _held(us, STREAM_MS, size.paced, size.seconds)
    title = f"{size.paced} streams, {1000 // STREAM_MS} tokens/s each"
    yield row(BENCH, f"{title}: CPU", paced.cpu_us / paced.wall_s / 1e6, "cores")
    yield row(BENCH, f"{title}: CPU of a token", paced.cpu_us / max(1, paced.events), "us")
    pace = ("the groups' pace", float(STREAM_MS))
    yield row(BENCH, f"{title}: usual delay between tokens", paced.usual_ms, "ms", reference=pace)
    yield row(BENCH, f"{title}: worst delay", paced.worst_ms, "ms", reference=pace)


def _held(us: Contender, every_ms: int, streams: int, seconds: float) -> Found:
    content = us.bodies(tokens=4096, every_ms=every_ms, stream=True)[0]
    return run(Held(port=us.port, body=content, pid=us.pid, streams=streams, seconds=seconds))
