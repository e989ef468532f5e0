"""The ring in virtual time that benchmarks measure: chunks reach every stage, rooms are agreed upon, bounds hold."""

import random

import pytest

from bench.consensus import CHUNK_US, HOP_US, STAGE_US, DecodeGroup, PrefillGroup
from bench.machine import LAYERS, Share, hidden_bytes, tensor_parallel_bytes, tensor_parallel_us
from bench.pipeline import (
    FIXED,
    PROMPT,
    chunks_of,
    dynamic_table,
    equal_chunks,
    prefill_ring,
    smoothed_table,
    stage_time,
    submit,
    time_to_first_token_us,
    utilisation,
)
from bench.slot_votes import SlotVote
from tandem.core.controls import BUCKET
from tandem.core.ids import RankId

SHARE = Share(LAYERS // 4)


def test_equal_chunks_take_their_sum_and_the_depth_of_the_pipeline():
    """The flow shop's formula, against the real scheduler and window; the rest is hops and hidden states."""
    prompt, chunk = 16_384, 2048
    times = [SHARE.forward_us([one]) for one in equal_chunks(prompt, chunk)]
    reached = time_to_first_token_us(prompt, FIXED, 4, SHARE, chunk)
    bound = sum(times) + 3 * max(times)
    travel = 3 * (HOP_US + hidden_bytes(chunk) / 50e9 * 1e6)
    assert bound - len(times) <= reached <= bound + travel + len(times)


def test_every_stage_computes_the_whole_prompt_in_the_same_chunks():
    seen: dict[RankId, list[tuple[int, int]]] = {}

    def stage_us(plan, rank):
        seen.setdefault(rank, []).extend(chunks_of(plan))
        return stage_time(SHARE)(plan, rank)

    ring = prefill_ring(4, 10_000, 2048, stage_us)
    submit(ring, 1, 10_000)
    ring.run()
    assert seen[RankId(0)] == equal_chunks(10_000, 2048)
    assert all(chunks == seen[RankId(0)] for chunks in seen.values())


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_backlog_keeps_the_slowest_stage_busy_with_the_default_window(stages: int):
    """Scenario S25."""
    factor = [random.Random(number).uniform(0.5, 1.5) for number in range(997)]
    assert utilisation(stages, 1, 250, lambda tick, rank: factor[tick % 997]) >= 0.95


def test_the_rule_of_the_reference_moves_a_part_of_the_way():
    cost = SHARE.cost
    table = smoothed_table(cost, 8192)
    assert table[0] == 8192
    assert all(chunk % 64 == 0 and chunk >= 2048 for chunk in table)
    assert set(smoothed_table(cost, 8192, smoothing=0.0)) == {8192}
    dynamic = dynamic_table(cost, 4)
    exact = smoothed_table(cost, dynamic[0], smoothing=1.0)
    half = PROMPT // BUCKET // 8
    assert abs(exact[half] - dynamic[half]) <= 128


def test_a_forward_takes_no_less_than_reading_its_weights():
    assert SHARE.forward_us([(1, 0)]) == pytest.approx(SHARE.forward_us([(64, 0)]), rel=0.001)
    assert SHARE.forward_us([(4096, 0)]) == pytest.approx(SHARE.cost.time(4096, 0))


def test_tensor_parallel_ranks_send_two_all_reduces_per_layer():
    assert tensor_parallel_bytes(1, 4) == 2 * 80 * 1.5 * hidden_bytes(1)
    assert tensor_parallel_bytes(1, 1) == 0
    slow, fast = (tensor_parallel_us([(1024, 0)], 4, link) for link in ("400 Gbit/s", "NVLink"))
    assert slow - fast == pytest.approx(tensor_parallel_bytes(1024, 4) * (1 / 50e9 - 1 / 450e9) * 1e6)


@pytest.mark.parametrize("way", ["store", "ring"])
@pytest.mark.parametrize("busy", [False, True])
def test_an_observation_reaches_all_ranks_both_ways(way, busy: bool):
    group = DecodeGroup(3, way, busy=busy)
    rng = random.Random(1)
    found = [group.sample(rng) for _ in range(5)]
    assert all(sample.ticks >= 1 for sample in found)
    assert all(sample.all_us == sample.frame_us + 2 * HOP_US for sample in found)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_store_needs_at_most_a_tick_and_a_hop(depth: int):
    group = DecodeGroup(4, "store", busy=True, depth=depth)
    rng = random.Random(2)
    assert max(group.sample(rng).frame_us for _ in range(20)) <= STAGE_US + 2 * HOP_US


def test_a_granted_prompt_is_planned_within_a_tick_of_others():
    """Scenario S16."""
    group, rng = PrefillGroup(4), random.Random(3)
    assert max(group.sample_us(number, rng) for number in range(1, 6)) <= CHUNK_US + 5 * HOP_US


def test_a_slot_vote_needs_two_rounds_less_what_the_first_has_still_before_it():
    vote = SlotVote(ranks=4, step_us=10)
    assert vote.applied_us(rank=0, observed_us=100) == 100 + 7 * 10
    assert vote.applied_us(rank=3, observed_us=100) == 100 + 4 * 10
    assert vote.applied_us(rank=3, observed_us=101) == 110 + 4 * 10
