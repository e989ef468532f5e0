"""How a rank finds the rest of its ring: wait until all are registered, connect, join, and take the epoch."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from consensus.link import Listener
from consensus.pulse import Pulse
from consensus.store_link import FollowerStore, LeaderStore, PPConsensusStore
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, RankId
from tandem.core.members import Member
from tandem.core.messages import Formed, Join
from tandem.ports import HiddenOut
from tandem.runtime.carrying import carried_out
from tandem.runtime.endpoints import Endpoints, Socket
from tandem.runtime.hidden import open_out
from tandem.runtime.resources import Past, Process

FORMING_S = 10.0
"""How often a ring that does not form says who is missing; it waits for as long as it takes."""
LOOK_S = 0.05
"""How often a forming ring looks at the registry's last answer."""

log = logging.getLogger("tandem")


@dataclass(frozen=True, slots=True)
class NextRank:
    """The way to the next rank. A ring of one rank has none, the last rank sends no hidden states."""

    ring: Socket | None
    hidden: HiddenOut | None

    def close(self) -> None:
        """That process is gone: drop what waits for it."""
        if self.ring is not None:
            self.ring.close(0)
        if self.hidden is not None:
            self.hidden.close()


class Rendezvous:
    """One incarnation's part in forming its ring."""

    def __init__(
        self,
        process: Process,
        endpoints: Endpoints,
        past: Past,
        listener: Listener,
        pulse: Pulse,
        undo: contextlib.ExitStack,
    ) -> None:
        self._process = process
        self._options = process.options
        self._endpoints = endpoints
        self._past = past
        self._listener = listener
        self._pulse = pulse
        self._undo = undo
        self._met: list[Member] = []  # the ring that this rank is connected to
        self._next = NextRank(None, None)
        self._store: PPConsensusStore | None = None

    def wait(
        self,
        members: Callable[[], list[Member]],
        formed: Callable[[], Formed | None],
        check: Callable[[str], None],
    ) -> tuple[Formed, NextRank, PPConsensusStore]:
        """Until the ring has formed of the very incarnations that this rank is connected to.

        `check` hears who is missing, and may raise. Raises ConfigError when this rank was started differently.
        """
        complain_s = time.monotonic() + FORMING_S
        if self._endpoints.leader is not None:
            size, scale = self._options.group.size, self._options.timer_scale
            join = self._join()
            self._start(LeaderStore(self._endpoints.leader, size, join, self._listener, self._pulse, scale))
        while (agreed := formed()) is None or agreed.incarnations != _incarnations(self._met) or self._store is None:
            ring = self._ring(members())
            check(missing := self._missing(ring))
            if len(ring) == self._options.group.size and _incarnations(ring) != _incarnations(self._met):
                self._connect(ring)  # also when a rank has come back as another process
                self._met = ring
            if time.monotonic() > complain_s:
                log.warning("%s waits for its ring: %s", self._process.name, missing)
                complain_s += FORMING_S
            time.sleep(LOOK_S)
        return agreed, self._next, self._store

    def successor(self, members: list[Member]) -> RankId | None:
        """The first rank of the ring whose place another process has taken: it was started later."""
        boots = {member.rank: member.boot_ms for member in members if member.group == self._options.group}
        return next((met.rank for met in self._met if boots.get(met.rank, met.boot_ms) > met.boot_ms), None)

    def _missing(self, ring: list[Member]) -> str:
        """Who is not there, for people: rank 0 knows who has joined, the others who is registered."""
        there = {member.rank for member in ring}
        absent = [rank for rank in range(self._options.group.size) if rank not in there]
        if absent:
            return f"ranks {absent} are not in the registry"
        if isinstance(self._store, LeaderStore):
            refusal = f"; {self._store.refusal}" if self._store.refusal else ""
            return f"ranks {self._store.missing} have not joined{refusal}"
        return "rank 0 has not said that all have joined"

    def _ring(self, members: list[Member]) -> list[Member]:
        """Raises ConfigError for a rank that was started otherwise than another one, and has served with none yet."""
        mine = [member for member in members if member.group.name == self._options.group.name]
        for member in mine:
            if member.group != self._options.group and not self._past.known:
                raise ConfigError(
                    f"rank {member.rank} of {member.group.name} was started with partition {member.group.partition}, "
                    f"this one with {self._options.group.partition}: give all ranks the same --pp-partition"
                )
        return [member for member in mine if member.group == self._options.group]

    def _connect(self, ring: list[Member]) -> None:
        options, sockets = self._options, self._endpoints.sockets
        self._next.close()
        following = ring[(options.rank + 1) % options.group.size]
        if options.group.size > 1:
            hidden = None
            if following.rank != LEADER:
                slot_bytes = most_tokens(options) * self._process.resources.engine.hidden_bytes
                host = self._endpoints.member.host
                hidden = open_out(sockets, host, following, options.run_dir, slot_bytes)
                hidden = carried_out(options, hidden, self._process.resources.engine)
                self._undo.callback(hidden.close)
            self._next = NextRank(sockets.connect(zmq.PUSH, following.ring), hidden)
        if options.rank != LEADER:
            if self._store is not None:
                self._store.stop()
            leader = sockets.connect(zmq.DEALER, ring[0].leader, last_words=True)
            self._start(FollowerStore(leader, self._join(), self._listener, self._pulse, options.timer_scale))

    def _join(self) -> Join:
        member = self._endpoints.member
        return Join(
            RankId(member.rank),
            member.incarnation,
            member.boot_ms,
            member.limits,
            member.fingerprint,
            self._past.known,
            self._past.last_end,
            member.engine,
        )

    def _start(self, store: PPConsensusStore) -> None:
        self._store = store
        self._undo.callback(store.stop)
        store.start()


def _incarnations(ring: list[Member]) -> tuple[int, ...]:
    return tuple(member.incarnation for member in ring)


def most_tokens(options: RankOptions) -> int:
    """Tokens that one tick may compute: its chunks, and one for each request that decodes."""
    limits = options.limits
    match options.group.role:
        case RoleName.PREFILL:
            return limits.max_prefill_tokens
        case RoleName.DECODE:
            return limits.most_rooms
        case RoleName.COLOCATED:
            return limits.max_prefill_tokens + limits.most_rooms
