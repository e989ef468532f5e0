"""The flight record of one rank: every frame of the epoch with the digest it led to, as bytes, up to a bound."""

from collections import deque
from itertools import islice
from typing import NamedTuple

import msgspec

from tandem.core.ids import Tick
from tandem.core.inputs import Frame

RECORD_BYTES = 64 << 20
"""Minutes of a group under full load, hours of one that idles; little beside the memory of any model."""
ENTRY_BYTES = 160
"""What one entry takes in memory besides its own bytes."""

_encode = msgspec.msgpack.Encoder().encode


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One tick. `digest` is None for a step that did not end: what came of it is why the rank did."""

    frame: Frame
    digest: int | None


class Recorded(NamedTuple):
    """A tick in the record, its Entry still encoded."""

    tick: Tick
    digest: int
    entry: bytes


class Recorder:
    """Each frame is encoded once, when its step has ended. Past the bound, the oldest entries go."""

    def __init__(self, most_bytes: int = RECORD_BYTES) -> None:
        self.first_tick = Tick(0)
        """The oldest tick in the record: 0 means that the record can be re-executed."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: deque[tuple[int, bytes]] = deque()  # of consecutive ticks
        self._in_hand: Frame | None = None

    def take(self, frame: Frame) -> None:
        """This frame is about to be stepped."""
        self._in_hand = frame

    def led_to(self, digest: int) -> None:
        """The step of the frame has ended."""
        entry = _encode(Entry(self._frame_in_hand(), digest))
        self._in_hand = None
        self._entries.append((digest, entry))
        self._bytes += len(entry) + ENTRY_BYTES
        while self._bytes > self._most_bytes and len(self._entries) > 1:
            self._bytes -= len(self._entries.popleft()[1]) + ENTRY_BYTES
            self.first_tick = Tick(self.first_tick + 1)

    def _frame_in_hand(self) -> Frame:
        assert self._in_hand is not None, "no frame has been taken"
        assert self._in_hand.tick == self.first_tick + len(self._entries), self._in_hand.tick
        return self._in_hand

    def since(self, tick: Tick) -> list[Recorded]:
        """What is recorded of the ticks after this one, oldest first. Costs no more than what it returns."""
        following = self.first_tick + len(self._entries)
        count = min(len(self._entries), max(0, following - tick - 1))
        news = list(islice(reversed(self._entries), count))
        ticks = range(following - count, following)
        return [Recorded(Tick(tick), *entry) for tick, entry in zip(ticks, reversed(news), strict=True)]

    def unfinished(self) -> bytes | None:
        """The encoded Entry of the frame whose step did not end, if there is one."""
        return None if self._in_hand is None else _encode(Entry(self._in_hand, None))
