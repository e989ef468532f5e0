"""What ranks have told of the newest attempts, kept from one look to the next. Pure: time is an argument."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from router.dashboard.meter import Meter
from router.membership import Watched
from router.pieces import Clock, Piece, Room, earliest, lead, piece_of, summary
from tandem.core.config import RoleName
from tandem.runtime.history import Outlines, Summary, What

MOST_ROOMS = 512
"""Attempts that are remembered; the oldest goes for one more."""
BAD = (What.FAILED, What.FAILED_HERE, What.CORRUPTED, What.FENCED)
"""What does not happen to a transfer that goes well."""
HANDED_OVER = (What.TRANSFERRED, What.DECODING, What.ENDED, What.GONE)
GIVEN_UP = "given up: its ring has started over"

Edge = tuple[str, str]


@dataclass
class Told:
    """One attempt, as far as it is known. Times are microseconds since 1970, by the router's clock."""

    pieces: dict[str, Piece] = field(default_factory=dict)
    summary: Summary | None = None
    heard: float = 0.0
    """When anything new of it came in, by the loop's clock."""
    last_us: int = 0
    """When the last thing happened to it that is known."""
    first_us: int | None = None
    handed_over: bool = False
    over_us: int | None = None
    given_up: bool = False

    @property
    def failed(self) -> bool:
        """Something went wrong with it on a rank; the request may have gone well on its next attempt."""
        return any(piece.at(what) is not None for piece in self.pieces.values() for what in BAD)

    @property
    def over(self) -> bool:
        """Nothing of its KV moves any more."""
        return self.handed_over or self.given_up

    @property
    def edge(self) -> Edge | None:
        """The pair of groups that it is handed over between."""
        groups = self.summary.groups if self.summary is not None else {}
        if len(groups) < 2:
            return None
        return groups[RoleName.PREFILL.value], groups[RoleName.DECODE.value]

    def read(self, groups: Sequence[Watched]) -> Summary:
        """Put together what its ranks have told."""
        pieces = [self.pieces[name] for name in sorted(self.pieces)]
        ahead = lead(pieces, RoleName.PREFILL, RoleName.COLOCATED)
        last = lead(pieces, RoleName.DECODE) or ahead
        self.summary = summary(room_of(pieces[0]), pieces, groups)
        self.last_us = max((at_us for piece in pieces for at_us in piece.outline.marks.values()), default=0)
        self.first_us = earliest(ahead, What.FIRST_TOKEN)
        self.over_us = earliest(last, What.ENDED, What.GONE)
        self.handed_over = earliest(last, *HANDED_OVER) is not None
        return self.summary


def room_of(piece: Piece) -> Room:
    """Which attempt it tells of."""
    return piece.outline.rid, piece.outline.attempt


class Book:
    """Takes in what one rank after the other tells, and adds up what it says of the edges."""

    def __init__(self) -> None:
        self._rooms: dict[Room, Told] = {}
        self._incarnations: dict[str, int] = {}
        self._meters: dict[Edge, Meter] = {}
        self._touched: set[Room] = set()

    def __len__(self) -> int:
        return len(self._rooms)

    def on_incarnation(self, rank: str, incarnation: int) -> bool:
        """Which life of this rank is asked; True when it is another one, which knows nothing of what was before."""
        known = self._incarnations.get(rank)
        self._incarnations[rank] = incarnation
        if known == incarnation:
            return False
        for told in self._rooms.values():
            if rank in told.pieces and told.over_us is None:
                told.given_up = True
        return True

    def on_outlines(self, told_by: Outlines, clock: Clock, now: float, *, first: bool) -> None:
        """What has changed on one rank. `first`: it was not asked for long, so that its bytes are of any time."""
        for outline in reversed(told_by.rooms):
            piece = piece_of(told_by, clock, outline)
            told = self._rooms.setdefault(room_of(piece), Told())
            before = told.pieces.get(told_by.name)
            told.pieces[told_by.name] = piece
            told.heard, told.given_up = now, False
            self._touched.add(room_of(piece))
            if not first and told_by.role == RoleName.PREFILL.value and outline.peer is not None:
                more = outline.bytes - (before.outline.bytes if before is not None else 0)
                self._meter((told_by.group, outline.peer), now).add(now, more)
        while len(self._rooms) > MOST_ROOMS:
            del self._rooms[next(iter(self._rooms))]

    def settle(self, groups: Sequence[Watched]) -> None:
        """All ranks of this look were heard: those attempts are put together of which something is new."""
        for room in [room for room in self._rooms if room in self._touched]:
            self._rooms[room].read(groups)
        self._touched.clear()
        known = {watched.group.name for watched in groups}
        for edge in [edge for edge in self._meters if not known.issuperset(edge)]:
            del self._meters[edge]
        ranks = {f"{watched.group.name}.{rank}" for watched in groups for rank in range(watched.group.size)}
        for name in [name for name in self._incarnations if name not in ranks]:
            del self._incarnations[name]

    def all(self) -> Iterator[tuple[Summary, Told]]:
        """Oldest first."""
        return ((told.summary, told) for told in self._rooms.values() if told.summary is not None)

    def rates(self, now: float) -> dict[Edge, float]:
        """Bytes a second that were written over each edge."""
        return {edge: meter.per_s(now) for edge, meter in self._meters.items()}

    def failures(self) -> dict[Edge, int]:
        """Attempts that failed on each edge, of those that are remembered."""
        counts: dict[Edge, int] = {}
        for _, told in self.all():
            if told.edge is not None and told.failed:
                counts[told.edge] = counts.get(told.edge, 0) + 1
        return counts

    def live(self, lost: Iterable[str]) -> list[tuple[Summary, Told]]:
        """Those whose KV is on its way, oldest first; none of groups that are lost."""
        gone = set(lost)
        return [
            (about, told)
            for about, told in self.all()
            if told.edge is not None and not told.over and gone.isdisjoint(told.edge)
        ]

    def _meter(self, edge: Edge, now: float) -> Meter:
        meter = self._meters.get(edge)
        if meter is None:
            meter = self._meters[edge] = Meter(now)
        return meter
