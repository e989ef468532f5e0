"""Each planted mistake is found by its recorded seed, as recorded; without it, the same seed passes."""

import pytest
from plants import PLANTS, Plant

from tandem.sim.case import Variant
from tandem.sim.run import simulate

SWITCHES = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
WITHOUT_CONSENSUS = (
    "re_poll_after_the_verdict",
    "outcome_decided_locally",
    "free_on_failed",
    "positional_lists",
    "set_iteration_order",
    "room_reuse_without_attempt",
    "own_clock",
    "metadata_gate_at_apply_only",
    "failure_not_forwarded",
    "local_deferred_release",
)
"""What goes wrong where ranks do not agree first: the ten mistakes that any checker of such a system must find."""


@SWITCHES
def test_the_recorded_seed_finds(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    plant.mistake(monkeypatch)
    with pytest.raises(plant.found_as) as caught:
        simulate(plant.seed, plant.variant)
    assert plant.finds(caught.value), f"found otherwise; if that is as good, record it: {caught.value}"


@pytest.mark.parametrize(("seed", "pairs"), sorted({(plant.seed, plant.pairs) for plant in PLANTS}, key=str))
def test_without_the_mistake_it_passes(seed: int, pairs: int):
    simulate(seed, Variant(pairs=pairs))


@SWITCHES
def test_each_says_what_somebody_got_wrong(plant: Plant):
    assert (plant.mistake.__doc__ or "").endswith(".")


def test_the_classical_mistakes_are_planted():
    assert {plant.name for plant in PLANTS}.issuperset(WITHOUT_CONSENSUS)


def test_each_mistake_is_planted_once():
    names = [plant.name for plant in PLANTS]
    assert sorted(set(names)) == sorted(names)
