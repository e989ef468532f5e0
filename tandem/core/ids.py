"""The identifiers everything else is keyed by: all of them integers, so ordering is the same everywhere."""

from typing import NewType

import msgspec

RequestId = NewType("RequestId", int)  # 63 random bits, drawn by the router
Tick = NewType("Tick", int)  # a group's logical clock: 0, 1, 2, ...
Slot = NewType("Slot", int)  # one of a decode group's running batches
RankId = NewType("RankId", int)  # position in the ring: 0 .. P-1
PageId = NewType("PageId", int)  # index into every rank's page pool
LayerId = NewType("LayerId", int)  # index into the model's layers
Epoch = NewType("Epoch", int)  # incarnation of a group

LEADER = RankId(0)
"""Builds the frames, talks to routers and to the other group's rank 0."""
NO_SLOT = Slot(-1)
"""The frame names no slot: it only changes state, nothing runs."""


class Room(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One transfer: a request in one of its attempts. Attempts are raised by the router alone and never reused."""

    rid: RequestId
    attempt: int

    def __str__(self) -> str:
        return f"{self.rid:016x}.{self.attempt}"
