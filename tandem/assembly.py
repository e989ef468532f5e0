"""Plugs a role's two halves into the ring protocol. Production, the simulator and replays build their ranks here."""

from typing import assert_never

from colocated.courier import NoCourier
from colocated.role import ColocatedRole
from decode.receiver import KVReceiver
from decode.role import DecodeRole
from prefill.role import PrefillRole
from prefill.sender import KVSender
from tandem.core.config import Group, Limits, RoleName
from tandem.core.controls import Controls
from tandem.core.ids import Epoch, RankId
from tandem.core.rank import Place, Rank
from tandem.core.role import Courier, Role
from tandem.core.scheduler import Scheduler
from tandem.core.tuning import tuner_of

WINDOW_PER_STAGE = 2
"""Prefill ticks in flight per stage: one computes, one waits, so that chunks of uneven cost leave no stage idle."""


def build_rank(group: Group, rank: RankId, epoch: Epoch, limits: Limits) -> Rank:
    """One rank of a freshly formed ring. `limits` are equal on all its ranks."""
    place = Place(group.name, rank, group.size, epoch)
    courier = build_courier(group, rank, limits)
    return Rank(place, build_scheduler(group, limits), courier, limits, tuner_of(group, limits))


def build_scheduler(group: Group, limits: Limits) -> Scheduler:
    """The replicated half: equal on all ranks."""
    controls = Controls(limits)
    return Scheduler(_role(group, limits, controls), controls, limits)


def _role(group: Group, limits: Limits, controls: Controls) -> Role:
    match group.role:
        case RoleName.PREFILL:
            return PrefillRole(limits, controls, window=WINDOW_PER_STAGE * group.size)
        case RoleName.DECODE:
            return DecodeRole(limits, slots=group.size + limits.async_depth)
        case RoleName.COLOCATED:
            return ColocatedRole(limits, controls, slots=group.size + limits.async_depth)
        case _:
            assert_never(group.role)


def build_courier(group: Group, rank: RankId, limits: Limits) -> Courier:
    """The local half."""
    layers = group.layers(rank)
    match group.role:
        case RoleName.PREFILL:
            return KVSender(layers, limits.page_size, limits.checksum_sample)
        case RoleName.DECODE:
            return KVReceiver(group.name, rank, layers, limits.page_size)
        case RoleName.COLOCATED:
            return NoCourier()
        case _:
            assert_never(group.role)
