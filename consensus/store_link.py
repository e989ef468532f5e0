"""PPConsensusStore: the store's dict-like face, with the thread and the socket that replicate it to rank 0.

The same link carries what else concerns the group's being alive: joining, heartbeats both ways, who was told to end,
and why an epoch is over. It needs no lock of the engine, so a long forward never looks like a dead rank.
"""

import logging
import threading
import time
from typing import Protocol

import zmq

from consensus.forming import Forming
from consensus.pulse import Pulse
from consensus.silence import Silence
from consensus.stall import patience_ms, stalled
from consensus.store import Column, Table
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, Epoch, RankId, Room
from tandem.core.messages import Ack, EpochEnded, Fact, Facts, Formed, FromLeader, Heartbeat, Join, Leaving, ToLeader
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Inbox, RouterInbox, encode, post

log = logging.getLogger("tandem")

HEARTBEAT_S = 0.5
"""Every 0.2 s was a quarter of an idle cluster's CPU and found nobody dead any sooner."""
DEAD_S = 2.5
"""Silence of a rank that ends the epoch; multiplied by the timer scale. A killed one is found within 3 s."""
STOP_S = 2.0
JOIN_S = 0.1
"""How often a rank that waits for its ring to form says that it is there."""
LINGER_MS = 200
"""For the last word to leave."""
NOWHERE = Epoch(0)


class Listener(Protocol):
    """Who is told what the link learns. Called on the link's thread."""

    def on_formed(self, formed: Formed) -> None:
        """The ring has its epoch."""

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        """Rank 0: the group's fact about a room changed."""

    def on_over(self, word: EpochEnded) -> None:
        """The epoch is over. Called once, whoever has found out; not for what `end` was told."""

    def on_refused(self, cause: str) -> None:
        """This rank was started otherwise than its ring: it cannot join."""

    def on_leaving(self, rank: RankId) -> None:
        """Rank 0: a rank was told to end. May be called again."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Link:
    """What both ends share: the thread, the own column, the last word, the way to stop."""

    def __init__(self, join: Join, listener: Listener, pulse: Pulse, timer_scale: float) -> None:
        self._join = join
        self._listener = listener
        self._pulse = pulse
        self._scale = timer_scale
        self._silence = Silence(DEAD_S * timer_scale)
        self._lock = threading.Lock()
        self._column: Column | None = None
        self._formed: Formed | None = None
        self._word: EpochEnded | None = None  # the epoch is over
        self._spread = False  # who has to hear the word has been told
        self._wakeups: ThreadInbox[None] = ThreadInbox()
        self._stopping = False
        self._thread = threading.Thread(target=self._guard, name="store", daemon=True)

    def start(self) -> None:
        """Begin to join and to listen."""
        self._thread.start()

    def end(self, cause: str, *, left: bool = False) -> None:
        """This rank has found that the epoch is over: all others hear the same words. From any thread."""
        self._take_word(EpochEnded(self._epoch, self._join.rank, cause, left))
        self._wakeups.wake()

    def stop(self) -> None:
        """End the thread, when the word has left; the socket is closed with it."""
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
            self._over(f"the store link of rank {self._join.rank} failed: {error!r}")
        finally:
            self._wakeups.close()

    def _serve(self) -> None:
        raise NotImplementedError

    @property
    def _epoch(self) -> Epoch:
        return NOWHERE if self._formed is None else self._formed.epoch

    def _over(self, cause: str) -> None:
        """This link has found that the epoch is over."""
        self._hear(EpochEnded(self._epoch, self._join.rank, cause))

    def _hear(self, word: EpochEnded) -> None:
        """Somebody has found it: the first word counts."""
        if self._take_word(word):
            self._listener.on_over(word)

    def _take_word(self, word: EpochEnded) -> bool:
        with self._lock:
            first = self._word is None
            if first:
                self._word = word
        return first

    def _flush(self) -> Facts | None:
        with self._lock:
            return self._column.flush(_now_ms()) if self._column is not None else None

    def _alarm_s(self, now_s: float) -> float:
        """How long nobody has to be looked after."""
        watching = self._formed is not None and self._word is None
        return min(HEARTBEAT_S, self._silence.due_s(now_s)) if watching else HEARTBEAT_S

    def _beat(self, now_s: float) -> Heartbeat:
        return Heartbeat(self._epoch, self._join.rank, *self._pulse.report(now_s))

    def _listen(self, sleep_s: float) -> None:
        """Wait for what comes, or for a word of another thread, or until the time is over."""
        self._poller.poll(max(0, int(sleep_s * 1000)) + 1)
        self._wakeups.take()

    def _wait_on(self, socket: "zmq.Socket[bytes]") -> None:
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._wakeups.fd, zmq.POLLIN)


class FollowerStore(_Link):
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
                self._next_beat_s = now_s + (JOIN_S if self._formed is None else HEARTBEAT_S)
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
            self._over(f"rank 0 was silent for {DEAD_S * self._scale:g} s")

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
                        self._column.on_ack(message, _now_ms())
            case EpochEnded() if self._formed is None and message.epoch == NOWHERE:
                self._listener.on_refused(message.cause)
            case EpochEnded() if self._formed is not None and message.epoch == self._formed.epoch:
                self._hear(message)
            case Heartbeat() | EpochEnded():
                pass  # it was heard: that is all it says


class LeaderStore(_Link):
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
            self._over(f"rank {join.rank} came back as another process")
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
        post(self._inbox.socket, sender, encode(EpochEnded(NOWHERE, self._join.rank, why)))

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

    def _watch(self, now_s: float) -> None:
        """Silence of a joined rank ends the epoch, named, and so does a ring that stands still."""
        if self._formed is None:
            return
        dead = self._silence.look(now_s)
        if dead is not None:
            self._over(f"rank {dead} was silent for {DEAD_S * self._scale:g} s")
            return
        beats = [self._beat(now_s), *(self._beats[rank] for rank in sorted(self._beats))]
        if len(beats) == self._size:
            cause = stalled(beats, patience_ms(self._pulse.usual_s, self._scale))
            if cause is not None:
                self._over(cause)

    def _send_word(self) -> None:
        """To everybody, whoever has found it."""
        if self._word is not None and not self._spread and self._formed is not None:
            self._spread = True
            for sender in self._where.values():
                post(self._inbox.socket, sender, encode(self._word))


PPConsensusStore = FollowerStore | LeaderStore
"""The store as a rank sees it: `store[room] = fact`, `del store[room]`; rank 0's listener hears what all combine to."""
