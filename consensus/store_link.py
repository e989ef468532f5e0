"""PPConsensusStore: the store's dict-like face, with the thread and the socket that replicate it to rank 0.

The same link carries what else concerns the group's being alive: joining, and heartbeats both ways. It needs no lock of
the engine, so a long forward never looks like a dead rank.
"""

import logging
import threading
import time
from typing import Protocol

import zmq

from consensus.forming import Forming
from consensus.store import Column, Table
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId, Room
from tandem.core.messages import Ack, Fact, Facts, Formed, FromLeader, Heartbeat, Join, ToLeader
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Inbox, RouterInbox, encode, post

log = logging.getLogger("tandem")

HEARTBEAT_S = 0.5
"""Six of them fit into DEAD_S. Every 0.2 s was a quarter of an idle cluster's CPU and found nobody dead any sooner."""
DEAD_S = 3.0
"""Silence of a neighbour that ends the epoch; multiplied by the timer scale."""
STOP_S = 2.0
JOIN_S = 0.1
"""How often a rank that waits for its ring to form says that it is there."""


class Listener(Protocol):
    """Who is told what the link learns. Called on the link's thread."""

    def on_formed(self, formed: Formed) -> None:
        """The ring has its epoch."""

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        """Rank 0: the group's fact about a room changed."""

    def on_lost(self, cause: str) -> None:
        """A rank is gone or cannot join: the epoch ends."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Link:
    """What both ends share: the thread, the own column, the way to stop."""

    def __init__(self, join: Join, listener: Listener, timer_scale: float) -> None:
        self._join = join
        self._listener = listener
        self._dead_s = DEAD_S * timer_scale
        self._lock = threading.Lock()
        self._column: Column | None = None
        self._wakeups: ThreadInbox[None] = ThreadInbox()
        self._stopping = False
        self._thread = threading.Thread(target=self._guard, name="store", daemon=True)

    def start(self) -> None:
        """Begin to join and to listen."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the socket is closed with it."""
        self._stopping = True
        self._wakeups.wake()
        self._thread.join(STOP_S)

    def __setitem__(self, room: Room, fact: Fact) -> None:
        """Learn a fact; it is on its way to rank 0 when this returns."""
        with self._lock:
            assert self._column is not None
            self._column.set(room, fact)
        self._wakeups.wake()

    def __delitem__(self, room: Room) -> None:
        """Drop this rank's facts about a room."""
        with self._lock:
            assert self._column is not None
            self._column.delete(room)
        self._wakeups.wake()

    def __len__(self) -> int:
        return len(self._column) if self._column is not None else 0

    def unacked_age_ms(self) -> int:
        """Age of the oldest update that rank 0 may not have."""
        with self._lock:
            return self._column.unacked_age_ms(_now_ms()) if self._column is not None else 0

    def _guard(self) -> None:
        """The thread's death is the group's: nobody would ever hear of a fact again."""
        try:
            self._serve()
        except Exception as error:
            log.exception("the store link of rank %d failed", self._join.rank)
            self._listener.on_lost(f"the store link of rank {self._join.rank} failed: {error!r}")

    def _serve(self) -> None:
        raise NotImplementedError

    def _flush(self) -> Facts | None:
        with self._lock:
            return self._column.flush(_now_ms()) if self._column is not None else None


class FollowerStore(_Link):
    """On every rank but 0: a DEALER to rank 0."""

    def __init__(self, socket: "zmq.Socket[bytes]", join: Join, listener: Listener, timer_scale: float = 1.0) -> None:
        super().__init__(join, listener, timer_scale)
        self._inbox: Inbox[FromLeader] = Inbox(socket, FromLeader)
        self._formed: Formed | None = None
        self._heard_s = time.monotonic()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox.socket, zmq.POLLIN)
        poller.register(self._wakeups.fd, zmq.POLLIN)
        next_beat_s = 0.0
        while not self._stopping:
            now_s = time.monotonic()
            if now_s >= next_beat_s:
                next_beat_s = now_s + (JOIN_S if self._formed is None else HEARTBEAT_S)
                self._beat(now_s)
            self._send_facts()
            poller.poll(max(0, int((next_beat_s - time.monotonic()) * 1000)) + 1)
            self._wakeups.take()
            while (message := self._inbox.receive()) is not None:
                self._heard_s = time.monotonic()
                self._on(message)
        self._inbox.socket.close(0)

    def _beat(self, now_s: float) -> None:
        if self._formed is None:
            post(self._inbox.socket, encode(self._join))
            return
        if now_s - self._heard_s > self._dead_s:
            self._listener.on_lost(f"rank 0 was silent for {self._dead_s:.0f} s")
            self._stopping = True
        post(self._inbox.socket, encode(Heartbeat(self._formed.epoch, self._join.rank)))

    def _send_facts(self) -> None:
        facts = self._flush()
        if facts is not None:
            post(self._inbox.socket, encode(facts))  # not sent: the overdue acknowledgement brings a snapshot

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
                        self._column.on_ack(message, _now_ms())
            case Heartbeat():
                pass  # it was heard: that is all it says


class LeaderStore(_Link):
    """On rank 0: a ROUTER for all others, and the table of all columns."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        size: int,
        join: Join,
        listener: Listener,
        timer_scale: float = 1.0,
    ) -> None:
        super().__init__(join, listener, timer_scale)
        self._inbox: RouterInbox[ToLeader] = RouterInbox(socket, ToLeader)
        self._size = size
        self._forming = Forming(size)
        self._formed: Formed | None = None
        self._table: Table | None = None
        self._members: dict[RankId, Join] = {}
        self._heard_s: dict[RankId, float] = {}
        self.strangers = 0  # messages of another epoch, or from a rank that never joined

    @property
    def missing(self) -> list[RankId]:
        """Ranks that have not joined."""
        return self._forming.missing

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox.socket, zmq.POLLIN)
        poller.register(self._wakeups.fd, zmq.POLLIN)
        self._on_join(self._join, None)
        while not self._stopping:
            poller.poll(int(HEARTBEAT_S * 1000))
            self._wakeups.take()
            while (received := self._inbox.receive()) is not None:
                self._on(*received)
            own = self._flush()
            if own is not None:
                self._on_facts(own, None)
            self._watch()
        self._inbox.socket.close(0)

    def _on(self, sender: bytes, message: ToLeader) -> None:
        match message:
            case Join():
                self._on_join(message, sender)
            case Facts() if self._is_member(message):
                self._heard_s[message.rank] = time.monotonic()
                self._on_facts(message, sender)
            case Heartbeat() if self._is_member(message):
                self._heard_s[message.rank] = time.monotonic()
                post(self._inbox.socket, sender, encode(Heartbeat(message.epoch, self._join.rank)))
            case _:
                self.strangers += 1

    def _is_member(self, message: Facts | Heartbeat) -> bool:
        """Of this epoch, from a rank that has joined it: anything else says nothing about our ring."""
        current = self._formed is not None and message.epoch == self._formed.epoch
        return current and message.rank in self._members

    def _on_join(self, join: Join, sender: bytes | None) -> None:
        known = self._members.get(join.rank)
        if self._formed is not None and (known is None or known.incarnation != join.incarnation):
            self._listener.on_lost(f"rank {join.rank} came back as another process")
            return
        try:
            formed = self._forming.on(join)
        except ConfigError as error:
            self._listener.on_lost(str(error))
            return
        self._members[join.rank] = join
        self._heard_s[join.rank] = time.monotonic()
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

    def _on_facts(self, facts: Facts, sender: bytes | None) -> None:
        with self._lock:
            if self._table is None:
                return
            touched, ack = self._table.on(facts)
            combined = [(room, self._table.combined(room)) for room in touched]
            if ack is not None and sender is None and self._column is not None:
                self._column.on_ack(ack, _now_ms())
        if ack is not None and sender is not None:
            post(self._inbox.socket, sender, encode(ack))
        for room, fact in combined:
            self._listener.on_combined(room, fact)

    def _watch(self) -> None:
        """Silence of a joined rank ends the epoch, named."""
        if self._formed is None:
            return
        now_s = time.monotonic()
        for rank, heard_s in self._heard_s.items():
            if rank != self._join.rank and now_s - heard_s > self._dead_s:
                self._listener.on_lost(f"rank {rank} was silent for {self._dead_s:.0f} s")
                self._stopping = True


PPConsensusStore = FollowerStore | LeaderStore
"""The store as a rank sees it: `store[room] = fact`, `del store[room]`; rank 0's listener hears what all combine to."""
