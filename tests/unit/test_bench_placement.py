"""What the placement benchmark plays: real pools, whose hits are counted where they happen."""

import pytest

from bench import placement
from bench.placement import Run, conversations, limit, measure
from router.policies import POLICIES, CacheAware, RoundRobin

PROMPTS = list(conversations(1, 120))


def test_every_prompt_is_computed_once_and_the_pools_are_whole_afterwards():
    run = Run(PROMPTS, CacheAware(), 10_000.0)
    run.found()
    workers = run.workers.values()
    assert sum(worker.hits + worker.computed for worker in workers) == sum(len(prompt.hashed) for prompt in PROMPTS)
    for worker in workers:
        worker.pool.audit()
        assert worker.pool.counts()["owned"] == 0


def test_the_router_knows_each_pool_and_nothing_is_left_under_way():
    run = Run(PROMPTS, CacheAware(), 10_000.0)
    run.found()
    for name, worker in run.workers.items():
        known = run._underway.of(name)
        assert len(known.index) == worker.pool.counts()["cached"]
        assert (known.queued, known.open) == (0, 0)


def test_looking_at_caches_finds_more_than_turns_and_no_more_than_there_is():
    ours, turns = (Run(PROMPTS, policy, 10_000.0).found().hit_ratio for policy in (CacheAware(), RoundRobin()))
    assert turns < ours <= limit(PROMPTS)


def test_equal_seeds_give_equal_figures():
    assert measure(quick=True, seed=3) == measure(quick=True, seed=3)


def test_a_trace_that_is_not_there_is_named_and_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(placement.DATA, raising=False)
    rows = {row.case: row for row in measure(quick=True, seed=1)}
    assert all(rows[name].holds is None and placement.DATA in rows[name].reason for name in placement.TRACES)
    assert {f"conversations: hit ratio, {name}" for name in POLICIES if name != "cache_aware"} < rows.keys()
