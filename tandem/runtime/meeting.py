"""How a rank finds the rest of its ring: wait until all are registered, connect, join, and take the epoch."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from consensus.store_link import FollowerStore, LeaderStore, Listener, PPConsensusStore
from tandem.core.config import RankOptions
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.core.messages import Join
from tandem.core.rank import LEADER
from tandem.ports import HiddenOut
from tandem.runtime.body import Body
from tandem.runtime.doors import Doors, Socket
from tandem.runtime.drive import GroupLost
from tandem.runtime.hidden import open_out

FORMING_S = 120.0
"""A ring that has not formed by then gives up and says who is missing."""
LOOK_S = 0.05
"""How often a forming ring looks at the registry's last answer."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the next rank. A ring of one rank has none, the last rank sends no hidden states."""

    ring: Socket | None
    hidden: HiddenOut | None


class Meeting:
    """One rank's part in forming its ring."""

    def __init__(
        self, options: RankOptions, body: Body, doors: Doors, listener: Listener, undo: contextlib.ExitStack
    ) -> None:
        self._options = options
        self._body = body
        self._doors = doors
        self._listener = listener
        self._undo = undo
        self._met: list[int] = []  # incarnations of the ring that this rank is connected to
        self._way = Way(None, None)
        self._store: PPConsensusStore | None = None

    def wait(
        self, members: Callable[[], list[Member]], check: Callable[[], None], formed: threading.Event
    ) -> tuple[Way, PPConsensusStore]:
        """Until the ring has formed and this rank knows the way on. `check` is called often and may raise.

        Raises GroupLost when the deadline passes, ConfigError when ranks were started differently.
        """
        deadline_s = time.monotonic() + FORMING_S * self._options.timer_scale
        if self._doors.leader is not None:
            size, scale = self._options.group.size, self._options.timer_scale
            self._start(LeaderStore(self._doors.leader, size, self._join(), self._listener, scale))
        while not (formed.wait(LOOK_S) and self._met):
            check()
            ring = self._ring(members())
            incarnations = [member.incarnation for member in ring]
            if len(ring) == self._options.group.size and incarnations != self._met:
                self._connect(ring)  # also when a rank has come back as another process
                self._met = incarnations
            if time.monotonic() > deadline_s:
                raise GroupLost(f"the ring did not form within {FORMING_S:.0f} s: missing are {self.missing(ring)}")
        assert self._store is not None
        return self._way, self._store

    def missing(self, ring: list[Member]) -> str:
        """Ranks that are not registered, or have not joined, for people."""
        there = {member.rank for member in ring}
        absent = [rank for rank in range(self._options.group.size) if rank not in there]
        return f"ranks {absent}" if absent else "ranks that are registered but have not joined"

    def _ring(self, members: list[Member]) -> list[Member]:
        mine = [member for member in members if member.group.name == self._options.group.name]
        for member in mine:
            if member.group != self._options.group:
                raise ConfigError(
                    f"rank {member.rank} of {member.group.name} was started with partition {member.group.partition}, "
                    f"this one with {self._options.group.partition}: give all ranks the same --pp-partition"
                )
        return mine

    def _connect(self, ring: list[Member]) -> None:
        options, sockets = self._options, self._doors.sockets
        following = ring[(options.rank + 1) % options.group.size]
        if options.group.size > 1:
            hidden = None
            if following.rank != LEADER:
                limits = self._body.limits
                slot_bytes = max(limits.max_prefill_tokens, limits.max_rooms) * self._body.engine.hidden_bytes
                host = self._doors.member.host
                hidden = open_out(sockets, host, following, options.run_dir, slot_bytes)
                self._undo.callback(hidden.close)
            self._way = Way(sockets.connect(zmq.PUSH, following.ring), hidden)
        if options.rank != LEADER:
            if self._store is not None:
                self._store.stop()
            leader = sockets.connect(zmq.DEALER, ring[0].leader)
            self._start(FollowerStore(leader, self._join(), self._listener, options.timer_scale))

    def _join(self) -> Join:
        member = self._doors.member
        return Join(
            RankId(member.rank), member.incarnation, member.boot_ms, member.limits.num_pages, member.fingerprint
        )

    def _start(self, store: PPConsensusStore) -> None:
        self._store = store
        self._undo.callback(store.stop)
        store.start()
