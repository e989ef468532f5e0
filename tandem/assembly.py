"""Plugs a role's two halves into the ring protocol. Production and the simulator build their ranks here."""

from decode.receiver import KVReceiver
from decode.role import DecodeRole
from prefill.role import PrefillRole
from prefill.sender import KVSender
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId
from tandem.core.rank import Place, Rank
from tandem.core.scheduler import Scheduler

WINDOW_PER_STAGE = 2
"""Prefill ticks in flight per stage: one computes, one waits, so that chunks of uneven cost leave no stage idle."""


def build_rank(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
    """One rank of a freshly formed ring. `limits` are equal on all its ranks."""
    place = Place(group.name, rank, group.size, epoch)
    layers = group.layers(rank)
    match group.role:
        case RoleName.PREFILL:
            scheduler = Scheduler(PrefillRole(limits, window=WINDOW_PER_STAGE * group.size))
            return Rank(place, scheduler, KVSender(layers, limits.page_size))
        case RoleName.DECODE:
            scheduler = Scheduler(DecodeRole(limits, slots=group.size + limits.async_depth))
            return Rank(place, scheduler, KVReceiver(rank, layers))
