"""Chunks of equal time: the table, the first chunk that suits a pipeline, and what rank 0 learns from forwards."""

import random
from itertools import pairwise

import pytest

from tandem.core.chunking import ENOUGH, FLOOR, LEAST_FIRST, CostModel, Fit, best_first_chunk, equal_time_table
from tandem.core.controls import BUCKET

CONTEXT = 128 * BUCKET
COST = CostModel(base=1.5, per_token=0.07, per_pair=1.1e-6)
"""Milliseconds, about those of a stage of a large model."""


def chunks(prompt: int, table: tuple[int, ...]) -> list[tuple[int, int]]:
    """(tokens, start) of every chunk of a prompt."""
    found, start = [], 0
    while start < prompt:
        tokens = min(table[start // BUCKET], prompt - start)
        found.append((tokens, start))
        start += tokens
    return found


def makespan(cost: CostModel, prompt: int, table: tuple[int, ...], stages: int) -> float:
    times = [cost.time(*chunk) for chunk in chunks(prompt, table)]
    return sum(times) + (stages - 1) * max(times)


@pytest.mark.parametrize("cost", [COST, CostModel(0.0, 0.07, 0.0), CostModel(1.0, 0.0, 1e-6)])
def test_tokens_are_the_inverse_of_time(cost: CostModel):
    for tokens, start in ((1, 0), (64, 5), (2048, 100_000)):
        assert cost.tokens(cost.time(tokens, start), start) == pytest.approx(tokens)


def test_a_time_that_is_all_base_buys_no_tokens():
    assert COST.tokens(COST.base / 2, 0) == 0


def test_pairs_are_counted_once_however_a_prompt_is_cut():
    whole = COST.time(4096, 0) - COST.base
    halves = COST.time(1024, 0) + COST.time(3072, 1024) - 2 * COST.base
    assert whole == pytest.approx(halves)


def test_every_chunk_of_the_table_costs_what_the_first_does_but_for_rounding():
    table = equal_time_table(COST, 2048, CONTEXT, BUCKET)
    time = COST.time(2048, 0)
    assert len(table) == CONTEXT // BUCKET
    assert table[0] == 2048
    for bucket, tokens in enumerate(table):
        assert COST.time(tokens, bucket * BUCKET) <= time
        assert bucket == 0 or COST.time(tokens + FLOOR, bucket * BUCKET) > time


def test_the_table_never_rises_and_keeps_its_bounds():
    for first in (1, 63, 64, 100, 512, 50_000):
        table = equal_time_table(COST, first, CONTEXT, BUCKET)
        assert all(later <= earlier for earlier, later in pairwise(table))
        assert max(table) == first
        assert min(table) >= min(first, FLOOR)


def test_without_attention_all_chunks_are_alike():
    assert set(equal_time_table(CostModel(1.0, 0.07, 0.0), 512, CONTEXT, BUCKET)) == {512}


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize(("prompt", "slack"), [(4 * BUCKET, 0.1), (32 * BUCKET, 0.02), (CONTEXT, 0.02)])
def test_no_other_first_chunk_is_much_better(prompt: int, slack: float, stages: int):
    """The closed form takes the number of chunks as real: a best whole number gains little, where there are many."""
    best = best_first_chunk(COST, prompt, stages, prompt)
    reached = makespan(COST, prompt, equal_time_table(COST, best, CONTEXT, BUCKET), stages)
    others = range(LEAST_FIRST, min(prompt, 8192), FLOOR)
    least = min(makespan(COST, prompt, equal_time_table(COST, one, CONTEXT, BUCKET), stages) for one in others)
    assert reached <= (1 + slack) * least


def test_one_stage_has_no_bubbles_to_avoid():
    assert best_first_chunk(COST, CONTEXT, 1, 8192) == 8192


def test_the_first_chunk_stays_within_what_a_tick_may_have():
    assert best_first_chunk(COST, CONTEXT, 4, 512) == 512
    assert best_first_chunk(CostModel(0.0, 0.07, 0.0), CONTEXT, 4, 512) == LEAST_FIRST
    assert best_first_chunk(CostModel(0.0, 0.07, 0.0), CONTEXT, 4, 16) == 16


def watch(fit: Fit, cost: CostModel, forwards: int, noise: float = 0.0, prompt: int = 20_000) -> list[tuple[int, ...]]:
    """The tables that come of prompts of random length, in chunks of 2048 tokens."""
    rng = random.Random(1)
    tables: list[tuple[int, ...]] = []
    seen = 0
    while seen < forwards:
        for chunk in chunks(rng.randint(1, prompt), (2048,) * (CONTEXT // BUCKET)):
            table = fit.observe([chunk], cost.time(*chunk) * (1 + noise * rng.uniform(-1, 1)))
            tables += [] if table is None else [table]
            seen += 1
    return tables


def fresh() -> Fit:
    return Fit(2048, CONTEXT, BUCKET, 4)


def test_exact_forwards_teach_their_cost():
    fit = fresh()
    watch(fit, COST, 2 * ENOUGH)
    assert fit.cost == pytest.approx(COST)


def test_one_table_comes_and_no_second_while_nothing_changes():
    (table,) = watch(fresh(), COST, 20 * ENOUGH)
    assert table == equal_time_table(COST, best_first_chunk(COST, CONTEXT, 4, 2048), CONTEXT, BUCKET)


def test_noise_of_a_tenth_moves_the_last_entries_by_less_than_a_tenth():
    fit = fresh()
    watch(fit, COST, 40 * ENOUGH, noise=0.1)
    assert fit.cost is not None
    for start in (0, CONTEXT):
        assert fit.cost.tokens(140, start) == pytest.approx(COST.tokens(140, start), rel=0.1)


def test_nothing_is_said_before_enough_was_seen():
    assert watch(fresh(), COST, ENOUGH - 20, prompt=2048) == []


def test_a_forward_ten_times_as_slow_is_one_among_many():
    fit = fresh()
    fit.observe([(2048, 0)], 10 * COST.time(2048, 0))
    watch(fit, COST, 10 * ENOUGH)
    assert fit.cost is not None
    assert fit.cost.tokens(140, 50_000) == pytest.approx(COST.tokens(140, 50_000), rel=0.1)


def test_a_forward_that_took_no_time_says_nothing():
    fit = fresh()
    for _ in range(2 * ENOUGH):
        assert fit.observe([(10, 0)], 0.0) is None
    assert fit.cost is None


def test_equal_forwards_do_not_tell_tokens_from_pairs():
    fit = fresh()
    for _ in range(4 * ENOUGH):
        assert fit.observe([(2048, 0)], COST.time(2048, 0)) is None
    assert fit.cost is None


def test_chunks_of_one_size_tell_their_growth():
    fit = fresh()
    for number in range(4 * ENOUGH):
        start = number % 8 * 2048
        fit.observe([(2048, start)], COST.time(2048, start))
    assert fit.cost is not None
    for start in (0, 14_336, 60_000):
        assert fit.cost.time(2048, start) == pytest.approx(COST.time(2048, start), rel=0.01)


def test_prompts_that_share_a_forward_count_together():
    fit = fresh()
    rng = random.Random(2)
    for _ in range(4 * ENOUGH):
        rows = [(rng.randint(1, 900), rng.randint(0, 40_000)) for _ in range(3)]
        fit.observe(rows, sum(COST.time(*row) for row in rows) - 2 * COST.base)
    assert fit.cost == pytest.approx(COST)


def test_a_stage_that_has_become_slower_is_followed():
    fit = fresh()
    watch(fit, COST, 4 * ENOUGH)
    slower = CostModel(*(value * 3 for value in COST))
    watch(fit, CostModel(COST.base, COST.per_token, 5 * COST.per_pair), 400 * ENOUGH)
    assert fit.cost is not None
    assert slower.per_pair < fit.cost.per_pair <= 5.01 * COST.per_pair
