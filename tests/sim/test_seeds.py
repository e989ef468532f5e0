"""The corpus: seeds that have failed once, or are worth keeping. Each file says what it was; all of them pass now."""

from pathlib import Path

import msgspec
import pytest

from tandem.sim.case import Variant
from tandem.sim.faults import Fault
from tandem.sim.run import simulate

SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.json"))


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """One file of the corpus; its name is the seed's."""

    what: str  # a paragraph: what broke, and why
    seed: int
    only: tuple[int, ...] | None = None
    without: tuple[Fault, ...] = ()
    ranks: tuple[int, int] | None = None
    needs: tuple[Fault, ...] = ()  # kinds that must act, or the seed does not stand for what it says any more


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_the_kept_seed_passes(path: Path):
    kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    result = simulate(kept.seed, Variant(kept.only, kept.without, kept.ranks))
    assert [kind.value for kind in kept.needs if not result.faults.get(kind)] == []


def test_the_corpus_is_there():
    assert SEEDS
