"""Each planted mistake is found by its recorded seed, as recorded; without it, the same seed passes."""

import pytest
from plants import PLANTS, Plant

from tandem.sim.run import simulate

SWITCHES = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)


@SWITCHES
def test_the_recorded_seed_finds(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    plant.mistake(monkeypatch)
    with pytest.raises(plant.found_as) as caught:
        simulate(plant.seed)
    assert plant.finds(caught.value), f"found otherwise; if that is as good, record it: {caught.value}"


@pytest.mark.parametrize("seed", sorted({plant.seed for plant in PLANTS}))
def test_without_the_mistake_it_passes(seed: int):
    simulate(seed)


@SWITCHES
def test_each_says_what_somebody_got_wrong(plant: Plant):
    assert (plant.mistake.__doc__ or "").endswith(".")
