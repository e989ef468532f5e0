"""Whole runs in which the router chooses by what is cached: when all is at rest it knows every cache exactly."""

import pytest

from router.index import Index
from tandem.core.journal import Journal
from tandem.core.messages import Cached
from tandem.sim.case import Variant, draw
from tandem.sim.router import Misplaced, Router
from tandem.sim.run import run_case

SEEDS = range(1, 13)
PAIRS = Variant(pairs=2)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pages that the router knew of each group when all was at rest."""
    counts: list[int] = []
    check = Router.check_known

    def look(router: Router) -> None:
        check(router)
        counts.extend(len(router.dispatch.underway.of(group.name).index) for group in router._world.groups)

    monkeypatch.setattr(Router, "check_known", look)
    return counts


def run_many() -> None:
    for seed in range(1, 100):
        run_case(draw(seed, PAIRS), policy="cache_aware")


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_is_answered_rightly_and_every_cache_is_known(seed: int, known: list[int]):
    run_case(draw(seed, PAIRS), policy="cache_aware")
    assert known


def test_something_is_cached_in_these_runs(known: list[int]):
    for seed in SEEDS:
        run_case(draw(seed, PAIRS), policy="cache_aware")
    assert sum(count > 0 for count in known) > len(SEEDS)


def test_equal_seeds_give_equal_runs_also_with_delays_that_are_drawn():
    first, second = (run_case(draw(4, PAIRS), policy="cache_aware") for _ in range(2))
    assert first == second


def test_a_journal_that_forgets_to_say_what_was_evicted_is_found_out(monkeypatch: pytest.MonkeyPatch):
    def silently(journal: Journal, pages: list[int]) -> None:
        for page in pages:
            del journal._hashes[page]  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "removed", silently)
    with pytest.raises(Misplaced, match="which has others"):
        run_many()


def test_a_router_that_loses_a_message_is_found_out(monkeypatch: pytest.MonkeyPatch):
    take, heard = Index.on_cached, iter(range(10**9))

    def lose_the_third(index: Index, message: Cached) -> None:
        if next(heard) != 2:
            take(index, message)

    monkeypatch.setattr(Index, "on_cached", lose_the_third)
    with pytest.raises(Misplaced, match="which has others"):
        run_many()
