"""What operators have told a group, as one rank has heard it: a paused group starts nothing, a flushed one forgets."""

from collections.abc import Sequence

from tandem.core.ids import Room, Tick
from tandem.core.inputs import Control, Frame, Order, Submit
from tandem.core.rank import Rank


class Disobeyed(Exception):
    """A group did what an operator had told it not to do."""


class Orders:
    """Follows the frames of one rank."""

    def __init__(self) -> None:
        self.tick = Tick(-1)  # the last one heard
        self._paused = False
        self._owned = 0  # pages, after the last step
        self._flushes: list[Tick] = []
        self._came: dict[Room, Tick] = {}  # which tick brought each room

    def check(self, rank: Rank, frames: Sequence[Frame]) -> None:
        """A rank has stepped these frames. Raises Disobeyed if it was paused, and launched rows or gave pages."""
        paused = [frame.tick for frame in frames if self._hear(frame)]
        owned, before = rank.scheduler.role.pool.counts()["owned"], self._owned
        self._owned = owned
        launched = [tick for tick in paused if tick in vars(rank.scheduler.flights)["_flights"]]
        if launched or (len(paused) == len(frames) and owned > before):
            who = f"{rank.place.group}.{rank.place.rank}"
            raise Disobeyed(f"{who} was paused at ticks {paused}: launched {launched}, pages {before}, then {owned}")

    def _hear(self, frame: Frame) -> bool:
        """Take a frame: whether it leaves the group paused."""
        self.tick = frame.tick
        for arrival in frame.arrivals:
            match arrival:
                case Control(order=Order.PAUSE | Order.RESUME as order):
                    self._paused = order is Order.PAUSE
                case Control(order=Order.FLUSH):
                    self._flushes.append(frame.tick)
                case Submit(work=work):
                    self._came.setdefault(work.room, frame.tick)
                case _:
                    pass
        return self._paused

    def flushed_between(self, written: Tick, reader: Room) -> bool:
        """Whether the cache was flushed after this tick and before a room came: it must not find what was written."""
        came = self._came.get(reader, written)
        return any(written < flush < came for flush in self._flushes)
