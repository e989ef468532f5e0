"""How a mistake gets at the ranks of a simulated world, and at the facts that they combine."""

from collections.abc import Callable

import msgspec
import pytest

import tandem.sim.world as world
from consensus.store import Table
from tandem.core.config import Group, Limits
from tandem.core.ids import Epoch, RankId
from tandem.core.messages import Fact
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


def combine(patch: Patch, **how: Callable[[list[Fact]], object]) -> None:
    """The table combines these fields of the ranks' facts in another way."""
    original = Table.combined

    def combined(table: Table, room):
        fact = original(table, room)
        if fact is None:
            return None
        facts = [column[room] for column in table._columns if room in column]
        return msgspec.structs.replace(fact, **{field: among(facts) for field, among in how.items()})

    patch.setattr(Table, "combined", combined)
