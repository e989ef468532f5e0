"""One cell of the matrix: a rank is struck at a point while streams run, and the cluster has to get over it."""

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bench.faults.running import LOOK_S, NotSo, Running
from bench.faults.streams import ANSWER_S, Ask, Asked, End, Ended, Stream, all_begun
from tandem.core.config import RoleName
from tandem.runtime.drills import STRUCK, Order, Point, Struck

Signal = Literal["SIGKILL", "SIGSTOP"]

STRIKE_S = 60.0
"""A point that nobody reaches in this time is not hit."""
NUDGE_S = 1.0
"""One more request comes so often until the point is reached."""
SHORT = 20
"""Tokens of the requests that show that the cluster serves."""


class Cell(msgspec.Struct, frozen=True):
    """Which rank of which group is struck where, and how."""

    role: RoleName
    group: str
    rank: int
    point: Point
    signal: Signal

    @property
    def victim(self) -> str:
        """Its name."""
        return f"{self.group}.{self.rank}"

    def __str__(self) -> str:
        return f"{self.victim} {self.point.value} {self.signal}"


class Load(msgspec.Struct, frozen=True):
    """Streams that run when the rank is struck: most of them are there before, the others lead it to the point."""

    early: int = 12
    early_tokens: int = 800
    late: int = 4
    late_tokens: int = 300


class Result(msgspec.Struct, frozen=True):
    """How a cell went. `wrong` is empty if it holds."""

    cell: Cell
    struck: Struck | None = None
    open: int = 0  # streams, when it was struck
    ends: dict[str, int] = {}
    serving_s: float = 0.0  # from the strike, or from SIGCONT, until all groups were usable again
    wrong: str = ""


def all_cells(ranks: int, groups: int = 2, points: Sequence[Point] = tuple(Point)) -> list[Cell]:
    """Neighbours strike different processes: who is killed again and again is started ever later."""
    roles = {RoleName.PREFILL: "p", RoleName.DECODE: "d"}
    signals: tuple[Signal, ...] = ("SIGKILL", "SIGSTOP")
    turns = [(point, number) for point in points for number in signals]
    return [
        Cell(role, f"{letter}{turn // 2 % groups}", rank, point, number)
        for turn, (point, number) in enumerate(turns)
        for rank in range(ranks)
        for role, letter in roles.items()
    ]


class Drills:
    """Runs cells on one cluster, one after another. `folder` is where its ranks look for orders."""

    def __init__(self, cluster: Running, folder: Path, ask: Ask, load: Load, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._ask = ask
        self._load = load
        self._rng = random.Random(seed)

    def run(self, cell: Cell) -> Result:
        """Whatever goes wrong is in the result."""
        drill = _Drill(self._cluster, self._folder, cell)
        try:
            load = self._load
            early, late = self._draw(load.early, load.early_tokens), self._draw(load.late, load.late_tokens)
            drill.strike(early, late, lambda: self._ask(self._rng, load.late_tokens))
            drill.recover()
            self._cluster.at_rest()
            wrong = _wrong(drill.ends() + self._serve())
            self._cluster.at_rest()
        except NotSo as error:
            wrong = str(error)
        if wrong:
            wrong += f" (logged in {self._keep_log(cell)})"
        return Result(cell, drill.struck, drill.open, Counter(map(str, drill.ends())), drill.serving_s, wrong)

    def _draw(self, count: int, tokens: int) -> list[Asked]:
        return [self._ask(self._rng, tokens) for _ in range(count)]

    def _keep_log(self, cell: Cell) -> Path:
        path = Path(tempfile.gettempdir(), f"tandem-matrix-{cell}.log".replace(" ", "-"))
        path.write_text("".join(self._cluster.lines()))
        return path

    def _serve(self) -> list[Ended]:
        """One request for each pair of groups."""
        streams = [Stream(self._cluster.url, asked) for asked in self._draw(self._load.late, SHORT)]
        return [stream.wait(ANSWER_S) for stream in streams]


class _Drill:
    """One cell under way."""

    def __init__(self, cluster: Running, folder: Path, cell: Cell) -> None:
        self.struck: Struck | None = None
        self.open = 0
        self.serving_s = 0.0
        self._cluster = cluster
        self._folder = folder
        self._cell = cell
        self._streams: list[Stream] = []
        self._epoch = cluster.epochs()[cell.group]
        size = next(one["size"] for one in cluster.workers() if one["name"] == cell.group)
        self._other = f"{cell.group}.{(cell.rank + 1) % size}"  # another rank of its ring

    def ends(self) -> list[Ended]:
        """Of the streams, when all have ended."""
        return [stream.wait(ANSWER_S) for stream in self._streams]

    def strike(self, early: Sequence[Asked], late: Sequence[Asked], draw: Callable[[], Asked]) -> None:
        """The early ones run when the order is given. Returns when the rank has been struck. Raises NotSo.

        Until then more are drawn: each is new to every cache, since a known one would go to its own group only.
        """
        self._streams += [Stream(self._cluster.url, asked) for asked in early]
        all_begun(self._streams)
        self._order(self._cell.victim, Order(self._cell.point, self._cell.signal))
        if self._cell.point is Point.FORMING:
            self._order(self._other, Order(Point.QUEUE, "SIGKILL"))
        self._streams += [Stream(self._cluster.url, asked) for asked in late]
        until_s, nudge_s = time.monotonic() + STRIKE_S, time.monotonic() + NUDGE_S
        while not (path := self._folder / f"{self._cell.victim}{STRUCK}").exists():
            if time.monotonic() > until_s:
                raise NotSo(f"{self._cell.victim} has not come to {self._cell.point.value} in {STRIKE_S:g} s")
            if time.monotonic() > nudge_s:
                self._streams.append(Stream(self._cluster.url, draw()))
                nudge_s += NUDGE_S
            time.sleep(LOOK_S)
        self.open = sum(stream.ended is None for stream in self._streams)
        self.struck = msgspec.json.decode(path.read_bytes(), type=Struck)
        path.unlink()

    def recover(self) -> None:
        """Returns when all groups serve again. Raises NotSo."""
        assert self.struck is not None
        begun_s = self.struck.at_us / 1e6
        if self._cell.signal == "SIGSTOP":
            self._cluster.until_none(self._unnoticed, "has not noticed that a rank has stopped")
            begun_s = time.time()
            with contextlib.suppress(ProcessLookupError):  # its supervisor has noticed it, too
                os.kill(self.struck.pid, signal.SIGCONT)
        self._cluster.serves({self._cell.group: self._epoch})
        self.serving_s = time.time() - begun_s

    def _unnoticed(self) -> str:
        """Its ring may form again before we see that it does not serve: whoever hangs is killed by the supervisor."""
        state = self._cluster.state(self._other)
        return f"{self._other} serves" if state["ready"] and state["epoch"] <= self._epoch else ""

    def _order(self, rank: str, order: Order) -> None:
        unfinished = self._folder / f"{rank}.unfinished"
        unfinished.write_bytes(msgspec.json.encode(order))
        (self._folder / f"{rank}{STRUCK}").unlink(missing_ok=True)
        unfinished.rename(self._folder / rank)


def _wrong(ends: Sequence[Ended]) -> str:
    """What no client may see: while a pair is left, an error as well."""
    return "; ".join(sorted({str(ended) for ended in ends if ended.end is not End.RIGHT}))
