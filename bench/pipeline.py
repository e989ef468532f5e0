"""Prefill pipelines on modelled stages: one long prompt, a backlog, and pipeline against tensor parallelism.

The scheduler, its chunks and its window are the real ones, in virtual time; `bench.machine` says how long stages take.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial

from bench.machine import (
    LAYERS,
    LINKS_BYTES_S,
    Chunk,
    Share,
    hidden_bytes,
    tensor_parallel_bytes,
    tensor_parallel_us,
)
from bench.rows import Row, row
from bench.stages import Ring, StageTime
from tandem.core.chunking import CostModel, Fit, best_first_chunk, equal_time_table
from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.controls import BUCKET
from tandem.core.ids import RankId, RequestId, Room, Tick
from tandem.core.inputs import Knobs, Submit
from tandem.core.plan import Plan
from tandem.core.requests import Sampling, Work

BENCH = "pipeline"
PROMPT = 131_072
MOST_CHUNK = 12_288
"""The chunk that the reference's own measurement begins with."""
SMOOTHING = 0.65
PAGE = 64
TP_CHUNK = 8192
EFFICIENCY_BARS = {4: ">= 0.95", 8: ">= 0.92"}
GIGA = 1e9
PROMPTS = (4096, 32_768, PROMPT)
"""Lengths for which pipeline and tensor parallelism are compared."""

Table = tuple[int, ...]
Vary = Callable[[Tick, RankId], float]
"""A factor on the time of one forward on one stage."""
FIXED: Table = ()


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Virtual time: equal seeds give equal figures, so nothing is repeated."""
    rows = [found for stages in EFFICIENCY_BARS for found in one_prompt(stages, seed)]
    rows += [found for stages in (2, 4, 8) for found in backlog_rows(stages, seed, 250 if quick else 400)]
    return rows + against_tensor_parallel()


# one long prompt


def one_prompt(stages: int, seed: int) -> list[Row]:
    """Row 1: tokens per second of one prompt of 128k tokens."""
    share = Share(LAYERS // stages)
    ideal = PROMPT / share.forward_us([(PROMPT, 0)]) * 1e6  # all of it at once on every stage, none of them ever idle
    bar, title = EFFICIENCY_BARS[stages], f"128k, P = {stages}: "
    reached = partial(tokens_s, stages=stages, share=share)
    dynamic, learned = reached(dynamic_table(share.cost, stages)), reached(learned_table(share, stages, seed))
    rule = reached(smoothed_table(share.cost, MOST_CHUNK))
    smaller = range(1024, MOST_CHUNK, 1024)
    best_fixed = max((reached(FIXED, chunk=chunk), chunk) for chunk in smaller)
    best_rule = max((reached(smoothed_table(share.cost, chunk)), chunk) for chunk in smaller)
    costly = Share(share.layers, fixed=3.0)
    costly_s = tokens_s(dynamic_table(costly.cost, stages), stages, costly)
    unit = "tok/s"
    return [
        row(BENCH, title + "dynamic chunks", dynamic, unit, reference=("ideal", ideal), bar=bar),
        row(BENCH, title + "learned from 256 forwards", learned, unit, reference=("ideal", ideal), bar=bar),
        row(BENCH, title + "dynamic, fixed costs x 3", costly_s, unit, reference=("ideal", ideal)),
        row(BENCH, title + "sigma = 0.65 from 12K", rule, unit, reference=("ideal", ideal)),
        row(BENCH, title + "dynamic chunks", dynamic, unit, reference=("sigma = 0.65 from 12K", rule), bar=">= 1.15"),
        row(BENCH, title + "dynamic chunks", dynamic, unit, reference=("fixed 12K", reached(FIXED))),
        row(BENCH, title + "dynamic chunks", dynamic, unit, reference=(f"best fixed: {best_fixed[1]}", best_fixed[0])),
        row(BENCH, title + "dynamic chunks", dynamic, unit, reference=(f"best sigma: {best_rule[1]}", best_rule[0])),
    ]


def dynamic_table(cost: CostModel, stages: int) -> Table:
    """Equal-time chunks that suit the longest prompt and this pipeline."""
    return equal_time_table(cost, best_first_chunk(cost, PROMPT, stages, MOST_CHUNK), PROMPT, BUCKET)


def smoothed_table(cost: CostModel, first_chunk: int, smoothing: float = SMOOTHING) -> Table:
    """The reference's rule, from SGLang's documentation ("Pipeline Parallelism for Long Context") and source.

    The equal-time chunk of a quadratic model without a constant, moved only the part `smoothing` of the way from the
    first chunk; at least a quarter of that; rounded down to multiples of 64.
    """
    model = CostModel(0.0, cost.per_token, cost.per_pair)
    time = model.time(first_chunk, 0)
    table = []
    for start in range(0, PROMPT, BUCKET):
        smoothed = first_chunk + smoothing * (model.tokens(time, start) - first_chunk)
        table.append(max(64, max(int(smoothed), first_chunk // 4) // 64 * 64))
    return tuple(table)


def learned_table(share: Share, stages: int, seed: int, forwards: int = 256) -> Table:
    """What rank 0 makes of forwards of mixed prompts, up to a quarter of the context, each 3% off, in milliseconds."""
    rng = random.Random(seed)
    fit = Fit(MOST_CHUNK, PROMPT, BUCKET, stages)
    table: Table = FIXED
    for _ in range(forwards):
        chunk = (rng.randint(64, 4096), rng.randint(0, PROMPT // 4))
        duration_ms = round(share.forward_us([chunk]) * rng.uniform(0.97, 1.03) / 1000)
        table = fit.observe([chunk], duration_ms) or table
    return table


def tokens_s(table: Table, stages: int, share: Share, chunk: int = MOST_CHUNK) -> float:
    """Tokens per second of one long prompt."""
    return PROMPT / time_to_first_token_us(PROMPT, table, stages, share, chunk) * 1e6


def time_to_first_token_us(
    prompt: int, table: Table, stages: int, share: Share, chunk: int = MOST_CHUNK, link: str = "400 Gbit/s"
) -> float:
    """From the submit to the end of the last forward of the last stage."""
    ring = prefill_ring(stages, prompt, chunk, stage_time(share), link)
    if table:
        ring.leader.on(Knobs(chunk_table=table))
    submit(ring, 1, prompt)
    ring.run()
    return ring.stages[-1].last_us


def prefill_ring(stages: int, pool: int, chunk: int, stage_us: StageTime, link: str = "400 Gbit/s") -> Ring:
    """A prefill group whose pages hold `pool` tokens, with the default window."""
    limits = Limits(
        page_size=PAGE,
        num_pages=pool // PAGE + 1,
        context=PROMPT + 1,
        chunked_prefill_size=chunk,
        max_prefill_tokens=chunk,
    )
    group = Group(RoleName.PREFILL, "p0", split_layers(LAYERS, stages))
    return Ring(
        group, limits, stage_us, hidden_us=lambda tokens: round(hidden_bytes(tokens) / LINKS_BYTES_S[link] * 1e6)
    )


def submit(ring: Ring, number: int, prompt: int) -> None:
    """A prompt that ends with its first token, so that nobody takes it over."""
    work = Work(Room(RequestId(number), 1), (0,) * prompt, 1, (), Sampling(), None)
    ring.leader.on(Submit(work, remaining_ms=10**9))


def chunks_of(plan: Plan) -> list[Chunk]:
    """What a forward computes."""
    return [(len(row.tokens), row.start) for row in plan.rows]


def stage_time(share: Share, vary: Vary = lambda tick, rank: 1.0) -> StageTime:
    """All stages are alike, but for a factor."""
    return lambda plan, rank: round(share.forward_us(chunks_of(plan)) * vary(plan.tick, rank))


# a backlog


def backlog_rows(stages: int, seed: int, prompts: int) -> list[Row]:
    """Row 2: how near the slowest stage comes to never waiting while prompts do not run out, with the usual window."""

    @cache
    def factor(*key: int) -> float:
        return random.Random(f"{seed}/{key}").uniform(0.5, 1.5)

    title = f"backlog of {prompts} prompts, P = {stages}"
    bound = ("slowest stage", 1.0)
    chunks = utilisation(stages, seed, prompts, lambda tick, rank: factor(tick))
    stalls = utilisation(stages, seed, prompts, lambda tick, rank: factor(tick, rank))
    return [
        row(BENCH, f"{title}, chunks vary by 50%", chunks, "of stage", reference=bound, bar=">= 0.97"),
        row(BENCH, f"{title}, on each stage anew", stalls, "of stage", reference=bound),
    ]


def utilisation(stages: int, seed: int, prompts: int, vary: Vary) -> float:
    """What the slowest stage computes, as a share of the longest time from a stage's first forward to its last.

    Prompts of 256 to 8192 tokens, in chunks of 2048.
    """
    rng = random.Random(seed)
    lengths = [rng.randint(256, 8192) for _ in range(prompts)]
    pool = sum(lengths) + PAGE * prompts
    ring = prefill_ring(stages, pool, 2048, stage_time(Share(LAYERS // stages), vary))
    for number, prompt in enumerate(lengths):
        submit(ring, number + 1, prompt)
    ring.run()
    return max(stage.busy_us for stage in ring.stages) / max(stage.last_us - stage.first_us for stage in ring.stages)


# pipeline against tensor parallelism


def against_tensor_parallel() -> list[Row]:
    """Time to first token and bytes sent per GPU, for the same GPUs in a pipeline and as one tensor-parallel group."""
    rows = []
    for prompt in PROMPTS:
        for stages in EFFICIENCY_BARS:
            title = f"{prompt // 1024}k, P = {stages}"
            sent = tensor_parallel_bytes(prompt, stages) / GIGA
            rows.append(row(BENCH, f"sent, {title}", hidden_bytes(prompt) / GIGA, "GB/GPU", reference=("TP", sent)))
            for link in LINKS_BYTES_S:
                tensor_s = tensor_parallel_us(equal_chunks(prompt, TP_CHUNK), stages, link) / 1e6
                reached = pipeline_s(prompt, stages, link)
                rows.append(row(BENCH, f"first token, {title}, {link}", reached, "s", reference=("TP", tensor_s)))
    return rows


def parallelism_table() -> str:
    """The same as Markdown, for docs/pp-vs-tp.md."""
    heads = [
        "prompt",
        "GPUs",
        "sent, PP",
        "sent, TP",
        *(f"{link}: {way}" for link in LINKS_BYTES_S for way in ("PP", "TP")),
    ]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for prompt in PROMPTS:
        for stages in EFFICIENCY_BARS:
            sent = (hidden_bytes(prompt), tensor_parallel_bytes(prompt, stages))
            cells = [f"{count / GIGA:.3g} GB" for count in sent]
            for link in LINKS_BYTES_S:
                tensor_s = tensor_parallel_us(equal_chunks(prompt, TP_CHUNK), stages, link) / 1e6
                cells += [f"{pipeline_s(prompt, stages, link):.3g} s", f"{tensor_s:.3g} s"]
            lines.append(f"| {prompt // 1024}k | {stages} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pipeline_s(prompt: int, stages: int, link: str) -> float:
    """A prompt's time to first token, with the chunks that suit the longest one: a table knows positions only."""
    share = Share(LAYERS // stages)
    return time_to_first_token_us(prompt, dynamic_table(share.cost, stages), stages, share, link=link) / 1e6


def equal_chunks(prompt: int, chunk: int) -> Sequence[Chunk]:
    """Chunks of one size; the last is what is left."""
    return [(min(chunk, prompt - start), start) for start in range(0, prompt, chunk)]
