"""What a cluster loses between its engine and its clients: the parts of a first token and of a step of decode."""

import re
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence

import msgspec

from bench.calm import come_to_rest
from bench.e2e_parts import Parts, first_token, second_token
from bench.e2e_sides import Server
from bench.engine import Case, Timed
from bench.idle import cpu_s
from bench.rows import Row, row
from bench.streams import Stream, rate
from tandem.runtime.history import Attempt, Transfer

BENCH = "e2e"
WHOLE = "the whole"
TICK_SUM, TICK_COUNT = "tandem_tick_duration_seconds_sum", "tandem_tick_duration_seconds_count"
ANSWER_S = 10.0


def lost(side: Server, alone: Timed, prompt: int, steps: int, batches: Sequence[int], repeats: int) -> Iterator[Row]:
    """One request of `prompt` tokens, and steps of so many streams of short context. Raises OSError, KeyError."""
    asked = [request(side, prompt) for _ in range(repeats + 1)][1:]
    whole = statistics.median(stream.first_s * 1000 for stream, _ in asked)
    yield from told(f"{side.name}, first token of {prompt}", [first_token(*one) for one in asked], whole)
    if len(asked[0][1].summary.groups) > 1:
        seconds = [second_token(*one) for one in asked]
        whole = statistics.median(sum(parts.values()) for parts in seconds)
        yield from told(f"{side.name}, second token of {prompt}", seconds, whole)
    for batch in batches:
        yield from told_step(side, alone, batch, steps, repeats)


def request(side: Server, prompt: int) -> tuple[Stream, Attempt]:
    """A new prompt to three tokens, and what the ranks remember of it."""
    assert side.cluster is not None
    come_to_rest()
    (stream,) = side.fresh(1, prompt, 3)
    told = fetched(f"{side.cluster.admin_url}/transfers/{stream.request_id}")
    return stream, msgspec.json.decode(told, type=Transfer).attempts[-1]


def told(title: str, found: Sequence[Parts], whole_ms: float) -> Iterator[Row]:
    """A row for each part: medians, beside the median of the whole."""
    for part in found[0]:
        value = statistics.median(parts[part] for parts in found)
        yield row(BENCH, f"{title}: {part}", value, "ms", reference=(WHOLE, whole_ms))


def told_step(side: Server, alone: Timed, batch: int, steps: int, repeats: int) -> Iterator[Row]:
    """One step of decode: the engine's part by the rank's own figures, and the CPU of each process."""
    context = 48
    found = [measured(side, batch, context, steps) for _ in range(repeats + 1)][1:]
    whole = statistics.median(parts["step"] for parts in found)
    title = f"{side.name}, a step of {batch}"
    for part in found[0]:
        if part != "step":
            value = statistics.median(parts[part] for parts in found)
            yield row(BENCH, f"{title}: {part}", value, "ms", reference=(WHOLE, whole))
    for kind, part in (("decode", "the engine alone"), ("forward", "the engine alone, without sampling")):
        case = Case("", (kind, batch, context, steps), batch * steps)
        value = statistics.median(alone.seconds(case) for _ in range(repeats)) / steps * 1000
        yield row(BENCH, f"{title}: {part}", value, "ms", reference=(WHOLE, whole))


def measured(side: Server, batch: int, context: int, steps: int) -> Parts:
    """Milliseconds of a step: the client's view, the engine's ticks, the rest, and CPU by process."""
    assert side.cluster is not None
    prompts = side.cached(batch, context)
    come_to_rest()
    head = next(name for name in ("d0.0", "c0.0") if name in side.cluster.http)
    pids = {name: pid for name, pid in side.cluster.pids.items() if name in side.cluster.http or name == "router"}
    before, cpu_before, own_s = ticks(side.cluster.http[head]), cpus(pids), time.process_time()
    streams = side.ask(prompts, steps + 1)
    after, cpu_after, own_s = ticks(side.cluster.http[head]), cpus(pids), time.process_time() - own_s
    step_ms = batch * 1000 / rate(streams)
    engine_ms = (after[0] - before[0]) / (after[1] - before[1]) * 1000
    parts = {"step": step_ms, "engine's tick, on average": engine_ms, "between ticks": step_ms - engine_ms}
    for name in pids:
        parts[f"CPU of {name}"] = (cpu_after[name] - cpu_before[name]) / steps * 1000
    return {**parts, "CPU of the client": own_s / steps * 1000}


def cpus(pids: dict[str, int]) -> dict[str, float]:
    """Seconds by name."""
    return {name: cpu_s(pid) for name, pid in pids.items()}


def ticks(address: str) -> tuple[float, float]:
    """Of a rank: seconds of its engine, and ticks."""
    text = fetched(f"http://{address}/metrics").decode()
    return figure(text, TICK_SUM), figure(text, TICK_COUNT)


def fetched(url: str) -> bytes:
    """Raises OSError."""
    with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
        found: bytes = answer.read()
    return found


def figure(text: str, name: str) -> float:
    """Of a metric that has one series."""
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} is not served"
    return float(found[1])
