"""PPConsensusStore: the store's dict-like face, with the thread and the socket that replicate it to rank 0.

The same link carries what else concerns the group's being alive: joining, heartbeats both ways, who was told to end,
and why an epoch is over. It needs no lock of the engine, so a long forward never looks like a dead rank.
"""

import logging
import time

import zmq

from consensus.forming import Forming
from consensus.link import LINGER_MS, NOWHERE, Link, Listener, now_ms
from consensus.pulse import Pulse
from consensus.stall import patience_ms, stalled
from consensus.store import Column, Table
from tandem.core.ends import End, EndKind
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, RankId
from tandem.core.messages import Ack, EpochEnded, Facts, Formed, FromLeader, Heartbeat, Join, Leaving, ToLeader
from tandem.runtime.links import Inbox, RouterInbox, encode, post

log = logging.getLogger("tandem")


class FollowerStore(Link):
    """On every rank but 0: a DEALER to rank 0."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        join: Join,
        listener: Listener,
        pulse: Pulse,
        timer_scale: float = 1.0,
    ) -> None:
        super().__init__(join, listener, pulse, timer_scale)
        self._inbox: Inbox[FromLeader] = Inbox(socket, FromLeader)
        self._leaving = False
        self._next_beat_s = 0.0

    def leave(self) -> None:
        """This rank was told to end: rank 0 hears of it until the epoch is over. From any thread."""
        self._leaving = True
        self._next_beat_s = 0.0
        self._wakeups.wake()

    def _serve(self) -> None:
        self._wait_on(self._inbox.socket)
        while not self._stopping:
            now_s = time.monotonic()
            self._listen(min(self._next_beat_s - now_s, self._alarm_s(now_s)))
            while (message := self._inbox.receive()) is not None:
                self._silence.heard(LEADER, time.monotonic())
                self._on(message)
            now_s = time.monotonic()
            if now_s >= self._next_beat_s:
                self._next_beat_s = now_s + self._period_s
                self._speak(now_s)
            self._watch(now_s)
            self._send_facts()
            self._send_word()
        self._send_word()
        self._inbox.socket.close(LINGER_MS)

    def _speak(self, now_s: float) -> None:
        if self._formed is None:
            post(self._inbox.socket, encode(self._join))
            return
        post(self._inbox.socket, encode(self._beat(now_s)))
        if self._leaving:
            post(self._inbox.socket, encode(Leaving(self._epoch, self._join.rank)))

    def _watch(self, now_s: float) -> None:
        if self._formed is not None and self._silence.look(now_s) is not None:
            self._lose(LEADER)

    def _send_facts(self) -> None:
        facts = self._flush()
        if facts is not None:
            post(self._inbox.socket, encode(facts))  # not sent: the overdue acknowledgement brings a snapshot

    def _send_word(self) -> None:
        """What this rank has found; what rank 0 has said it knows."""
        if self._word is not None and not self._spread and self._formed is not None:
            self._spread = True
            if self._word.rank == self._join.rank:
                post(self._inbox.socket, encode(self._word))

    def _on(self, message: FromLeader) -> None:
        match message:
            case Formed():
                if self._formed is None:
                    self._formed = message
                    with self._lock:
                        self._column = Column(message.epoch, self._join.rank)
                    self._listener.on_formed(message)
            case Ack():
                with self._lock:
                    if self._column is not None:
                        self._column.on_ack(message, now_ms())
            case EpochEnded() if self._formed is None and message.epoch == NOWHERE:
                self._listener.on_refused(message.end.cause)
            case EpochEnded() if self._formed is not None and message.epoch == self._formed.epoch:
                self._hear(message)
            case Heartbeat() | EpochEnded():
                pass  # it was heard: that is all it says


class LeaderStore(Link):
    """On rank 0: a ROUTER for all others, and the table of all columns."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        size: int,
        join: Join,
        listener: Listener,
        pulse: Pulse,
        timer_scale: float = 1.0,
    ) -> None:
        super().__init__(join, listener, pulse, timer_scale)
        self._inbox: RouterInbox[ToLeader] = RouterInbox(socket, ToLeader)
        self._size = size
        self._forming = Forming(size)
        self._table: Table | None = None
        self._members: dict[RankId, Join] = {}
        self._where: dict[RankId, bytes] = {}  # the others on our socket
        self._beats: dict[RankId, Heartbeat] = {}  # the last of each of them
        self._refusal = ""
        self.strangers = 0  # messages of another epoch, or from a rank that never joined

    @property
    def missing(self) -> list[RankId]:
        """Ranks that have not joined."""
        return self._forming.missing

    @property
    def refusal(self) -> str:
        """Why somebody who wanted to join was refused last; empty: nobody was."""
        return self._refusal

    def _serve(self) -> None:
        self._wait_on(self._inbox.socket)
        self._on_join(self._join, None)
        while not self._stopping:
            self._listen(self._alarm_s(time.monotonic()))
            while (received := self._inbox.receive()) is not None:
                self._on(*received)
            own = self._flush()
            if own is not None:
                self._on_facts(own, None)
            self._watch(time.monotonic())
            self._send_word()
        self._send_word()
        self._inbox.socket.close(LINGER_MS)

    def _on(self, sender: bytes, message: ToLeader) -> None:
        if isinstance(message, Join):
            self._on_join(message, sender)
            return
        if not self._is_member(message):
            self.strangers += 1
            return
        self._silence.heard(message.rank, time.monotonic())
        self._where[message.rank] = sender  # a Join may have come late, over a connection that has ended
        match message:
            case Facts():
                self._on_facts(message, sender)
            case Heartbeat():
                self._beats[message.rank] = message
                post(self._inbox.socket, sender, encode(self._word or self._beat(time.monotonic())))
            case Leaving(rank=rank):
                self._listener.on_leaving(rank)
            case EpochEnded():
                self._hear(message)

    def _is_member(self, message: Facts | Heartbeat | Leaving | EpochEnded) -> bool:
        """Of this epoch, from a rank that has joined it: anything else says nothing about our ring."""
        current = self._formed is not None and message.epoch == self._formed.epoch
        return current and message.rank in self._where

    def _on_join(self, join: Join, sender: bytes | None) -> None:
        known = self._members.get(join.rank)
        if self._formed is not None and (known is None or known.incarnation != join.incarnation):
            outlived = join.known == self._formed.epoch  # it has left before us: we have not heard, or were frozen
            replaced = End(f"rank {join.rank} came back as another process", EndKind.REPLACED)
            self._over(join.last_end if outlived else replaced)
            return
        try:
            formed = self._forming.on(join)
        except ConfigError as error:
            self._refuse(join, sender, str(error))
            return
        self._members[join.rank] = join
        if sender is not None:
            self._where[join.rank] = sender
            self._silence.heard(join.rank, time.monotonic())
        if formed is None:
            return
        if self._formed is None:
            self._formed = formed
            with self._lock:
                self._column = Column(formed.epoch, self._join.rank)
                self._table = Table(formed.epoch, self._size)
            self._listener.on_formed(formed)
        if sender is not None:
            post(self._inbox.socket, sender, encode(formed))

    def _refuse(self, join: Join, sender: bytes | None, why: str) -> None:
        """Of two that do not fit, the one that knows no epoch was started wrongly."""
        if sender is None or join.known > self._join.known:
            self._listener.on_refused(why)
            return
        if why != self._refusal:
            log.error("rank %d cannot join: %s", join.rank, why)
        self._refusal = why
        post(self._inbox.socket, sender, encode(EpochEnded(NOWHERE, self._join.rank, End(why))))

    def _on_facts(self, facts: Facts, sender: bytes | None) -> None:
        with self._lock:
            if self._table is None:
                return
            touched, ack = self._table.on(facts)
            combined = [(room, self._table.combined(room)) for room in touched]
            if ack is not None and sender is None and self._column is not None:
                self._column.on_ack(ack, now_ms())
        if ack is not None and sender is not None:
            post(self._inbox.socket, sender, encode(ack))
        for room, fact in combined:
            self._listener.on_combined(room, fact)

    def _watch(self, now_s: float) -> None:
        """Silence of a joined rank ends the epoch, named, and so does a ring that stands still."""
        if self._formed is None:
            return
        dead = self._silence.look(now_s)
        if dead is not None:
            self._lose(dead)
            return
        beats = [self._beat(now_s), *(self._beats[rank] for rank in sorted(self._beats))]
        if len(beats) == self._size:
            cause = stalled(beats, patience_ms(self._pulse.usual_s, self._scale))
            if cause is not None:
                self._over(End(cause, EndKind.STALLED))

    def _send_word(self) -> None:
        """To everybody, whoever has found it."""
        if self._word is not None and not self._spread and self._formed is not None:
            self._spread = True
            for sender in self._where.values():
                post(self._inbox.socket, sender, encode(self._word))


PPConsensusStore = FollowerStore | LeaderStore
"""The store as a rank sees it: `store[room] = fact`, `del store[room]`; rank 0's listener hears what all combine to."""
