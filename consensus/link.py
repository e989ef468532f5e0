"""What both ends of a group's store link share: the thread, the own column, and the last word of an epoch."""

import logging
import threading
import time
from typing import Protocol

import zmq

from consensus.pulse import Pulse
from consensus.silence import Silence
from consensus.store import Column
from tandem.core.ends import End, EndKind
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.messages import EpochEnded, Fact, Facts, Formed, Heartbeat, Join
from tandem.runtime.inbox import ThreadInbox

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


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Link:
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

    def end(self, end: End) -> None:
        """This rank has found that the epoch is over: all others hear the same words. From any thread."""
        self._take_word(EpochEnded(self._epoch, self._join.rank, end))
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
            return self._column.unacked_age_ms(now_ms()) if self._column is not None else 0

    def _guard(self) -> None:
        """The thread's death is the group's: nobody would ever hear of a fact again."""
        try:
            self._serve()
        except Exception as error:
            log.exception("the store link of rank %d failed", self._join.rank)
            self._over(End(f"the store link of rank {self._join.rank} failed: {error!r}"))
        finally:
            self._wakeups.close()

    def _serve(self) -> None:
        raise NotImplementedError

    @property
    def _epoch(self) -> Epoch:
        return NOWHERE if self._formed is None else self._formed.epoch

    @property
    def _period_s(self) -> float:
        """How often this end speaks."""
        return JOIN_S if self._formed is None else HEARTBEAT_S

    def _over(self, end: End) -> None:
        """This link has found that the epoch is over."""
        self._hear(EpochEnded(self._epoch, self._join.rank, end))

    def _lose(self, rank: RankId) -> None:
        """Somebody has not been heard for too long."""
        self._over(End(f"rank {rank} was silent for {DEAD_S * self._scale:g} s", EndKind.SILENT))

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
            return self._column.flush(now_ms()) if self._column is not None else None

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
