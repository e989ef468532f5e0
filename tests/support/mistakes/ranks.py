"""How a mistake gets at the ranks of a simulated world."""

from collections.abc import Callable

import pytest

import tandem.sim.world as world
from tandem.core.config import Group, Limits
from tandem.core.ids import Epoch, RankId
from tandem.core.rank import Rank

Patch = pytest.MonkeyPatch


def on_ranks(patch: Patch, change: Callable[[Rank], None]) -> None:
    """Change every rank as it is built."""
    original = world.build_rank

    def build(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
        built = original(group, rank, epoch, limits)
        change(built)
        return built

    patch.setattr(world, "build_rank", build)


def sessions(rank: Rank):
    """What its courier keeps, be it a reluctant one or not; a colocated rank's keeps nothing."""
    return getattr(getattr(rank.courier, "_courier", rank.courier), "_sessions", {})
