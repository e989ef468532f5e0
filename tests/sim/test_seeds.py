"""The corpus: seeds that have failed once, or are worth keeping. Each file says what it was; all of them pass now."""

from pathlib import Path

import msgspec
import pytest
from plants import PLANTS

from tandem.sim.case import Variant
from tandem.sim.faults import Fault
from tandem.sim.run import simulate

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.json"))


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """One file of the corpus; its name is the seed's."""

    what: str  # a paragraph: what broke, and why, or what comes together
    seed: int
    finds: tuple[str, ...]  # planted mistakes; else the seed does not stand for what it says any more
    only: tuple[int, ...] | None = None
    without: tuple[Fault, ...] = ()
    ranks: tuple[int, int] | None = None
    pairs: int | None = None
    needs: tuple[Fault, ...] = ()  # kinds that must act, for the same reason

    @property
    def variant(self) -> Variant:
        """What is left out, or there more than once."""
        return Variant(self.only, self.without, self.ranks, self.pairs)


KEPT = {path.stem: msgspec.json.decode(path.read_bytes(), type=Kept) for path in SEEDS}
FINDS = [(name, mistake) for name, kept in KEPT.items() for mistake in kept.finds]


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_the_kept_seed_passes(kept: Kept):
    result = simulate(kept.seed, kept.variant)
    assert [kind.value for kind in kept.needs if not result.faults.get(kind)] == []


@pytest.mark.parametrize(("name", "mistake"), FINDS)
def test_the_kept_seed_would_find(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch):
    plant = next(plant for plant in PLANTS if plant.name == mistake)
    plant.mistake(monkeypatch)
    with pytest.raises(plant.found_as) as caught:
        simulate(KEPT[name].seed, KEPT[name].variant)
    assert plant.finds(caught.value), f"found otherwise: {caught.value}"


def test_each_kept_seed_finds_something():
    assert KEPT
    assert all(kept.finds for kept in KEPT.values())
