"""What all ranks of a group must agree on: the same ticks, once, in order, with equal digests; each verdict once."""

from typing import Protocol

from tandem.core.errors import Divergence
from tandem.core.ids import Epoch, Room, Tick
from tandem.core.inputs import Frame, Kind
from tandem.core.rank import Rank
from tandem.core.recorder import Recorder

AUDIT_EVERY = 32
"""Ticks between two audits of a rank's pool, page by page."""
MOST_AT_ONCE = 200
"""Ticks that one event may lead to. A rank that steps more of them spins: nothing that it waits for can come."""


class Flooded(Exception):
    """A queue or a run has grown beyond its bound."""


class Record(Recorder):
    """A rank's flight record that notices when one event leads to ticks without end."""

    def __init__(self) -> None:
        super().__init__()
        self.news: list[tuple[Frame, int]] = []  # ticks stepped since somebody looked
        self._taken: list[Frame] = []

    def take(self, frame: Frame) -> None:
        """This frame is about to be stepped."""
        super().take(frame)
        self._taken.append(frame)

    def led_to(self, digest: int) -> None:
        """A tick has been stepped. Raises Flooded for one too many."""
        super().led_to(digest)
        frame = self._taken.pop()
        self.news.append((frame, digest))
        if len(self.news) > MOST_AT_ONCE:
            count = len(self.news)
            raise Flooded(f"one event has led to {count} ticks, the last at {frame.now_ms} ms: the rank spins")


class Hash(Protocol):
    """Takes what happened, in order."""

    def update(self, data: bytes, /) -> None: ...


class Ticks:
    """The digests of all ticks of all groups."""

    def __init__(self, told: Hash) -> None:
        self.busy_until_us = 0  # when the last tick was stepped
        self._told = told
        self._count = 0
        self._digests: dict[tuple[str, Epoch, Tick], tuple[int, int]] = {}  # and for how many ranks it is kept
        self._verdicts: dict[tuple[str, Room, Kind, int], None] = {}

    def __len__(self) -> int:
        return self._count

    def check(self, rank: Rank, record: Record, now_us: int) -> None:
        """Look at the ticks that a rank has stepped since the last time."""
        news, record.news = record.news, []
        place, tick = rank.place, rank.scheduler.tick
        for expected, (frame, digest) in enumerate(news, tick - len(news) + 1):
            if frame.tick != expected:
                raise Divergence(f"{place.group}.{place.rank} has stepped tick {frame.tick} instead of {expected}")
            self._compare(rank, frame, digest)
        self.busy_until_us = now_us
        if tick % AUDIT_EVERY < len(news):
            rank.scheduler.role.pool.audit()

    def _compare(self, rank: Rank, frame: Frame, digest: int) -> None:
        place = rank.place
        tick = place.group, place.epoch, frame.tick
        expected, left = self._digests.pop(tick, (digest, place.size))
        self._count += left == place.size
        if left > 1:
            self._digests[tick] = expected, left - 1
        if digest != expected:
            who = f"{place.group}.{place.rank}"
            raise Divergence(f"{who} has digest {digest:x} at tick {frame.tick}, others {expected:x}")
        self._told.update(digest.to_bytes(8, "big"))
        if place.first:
            for verdict in frame.verdicts:
                key = (place.group, verdict.room, verdict.kind, verdict.nth)
                if key in self._verdicts:
                    raise Divergence(f"{place.group} concludes {verdict} a second time")
                self._verdicts[key] = None
