"""Where a rank strikes itself down at a named point, for tests and drills: only with TANDEM_TEST_FAULTS=1.

A test puts a file of the rank's name, such as p0.1, into the folder that TANDEM_TEST_DRILLS names. It holds an Order.
The rank takes the file away, writes a Struck beside it, and sends itself the signal.
"""

import enum
import functools
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kvtransfer.transports.faulty import SWITCH
from tandem.core.config import RankOptions, RoleName
from tandem.core.effects import Effect, Forget, Observe, Post, SendNext, TellPeer
from tandem.core.errors import ConfigError
from tandem.core.events import Combined, Event, Moved, Ran, Written
from tandem.core.ids import LEADER, LayerId, Room
from tandem.core.inputs import Kind, Submit
from tandem.core.messages import Baton, Commit, Grant, Progress
from tandem.core.plan import Plan
from tandem.ports import Engine, Memory, Sampled
from tandem.runtime.drive import Drive

FOLDER = "TANDEM_TEST_DRILLS"
STRUCK = ".struck"
"""What the name of a rank's answer ends with."""

log = logging.getLogger("tandem.drills")


class Point(enum.Enum):
    """Where a rank is in its work on one room, or on its ring."""

    QUEUE = "queue"  # it is about to hear of a request
    BOOTSTRAP = "bootstrap"  # decode has sent its grant; prefill is about to take one
    FORWARD = "mid forward"  # on the engine's thread, between two layers
    LAYER = "mid layer"  # some layers' KV is on its way, or here, others' is not
    COMMIT = "before commit"  # all has been written, and the last commit is still to be sent, or taken
    COMMITTED = "after commits"  # prefill: every rank has nothing left to write; decode: this rank has it all
    DECODE = "mid decode"  # prefill: the room has gone, it decodes elsewhere; decode: between two forwards
    VOTE = "during a vote"  # it has voted, or said its fact, and does not know what will come of it
    FORMING = "during re-forming"  # it waits for the other ranks of its ring


class Order(msgspec.Struct, frozen=True):
    """Strike where this point comes by next."""

    point: Point
    signal: Literal["SIGKILL", "SIGSTOP"]


class Struck(msgspec.Struct, frozen=True):
    """The proof: who was where, and what it was about to take, or had just done."""

    rank: str
    point: Point
    signal: str
    pid: int
    at_us: int  # since 1970
    what: str


class Drill:
    """Of one rank. Called from any thread, each point from one only."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises ConfigError without TANDEM_TEST_FAULTS=1."""
        if os.environ.get(SWITCH) != "1":
            raise ConfigError(f"{FOLDER} is set: ranks strike themselves down only with {SWITCH}=1")
        self._order = folder / name
        self._struck = folder / f"{name}{STRUCK}"

    def at(self, point: Point, what: object) -> None:
        """Returns, unless this is the point that was ordered; after SIGSTOP, when somebody has sent SIGCONT."""
        try:
            order = msgspec.json.decode(self._order.read_bytes(), type=Order)
        except FileNotFoundError:
            return
        if order.point is point:
            self._order.unlink()
            self._strike(order, str(what))

    def _strike(self, order: Order, what: str) -> None:
        log.warning("struck %s with %s: %s", order.point.value, order.signal, what)
        struck = Struck(self._order.name, order.point, order.signal, os.getpid(), time.time_ns() // 1000, what[:200])
        unfinished = self._struck.with_suffix(".unfinished")
        unfinished.write_bytes(msgspec.json.encode(struck))
        unfinished.rename(self._struck)
        os.kill(os.getpid(), signal.Signals[order.signal])


@functools.cache
def _drill(name: str) -> Drill | None:
    """This process's, if there are drills. Raises ConfigError."""
    folder = os.environ.get(FOLDER)
    return None if folder is None else Drill(Path(folder), name)


def _drill_of(options: RankOptions) -> Drill | None:
    return _drill(f"{options.group.name}.{options.rank}")


# where points come by


def forming(options: RankOptions, missing: str) -> None:
    """A ring that has been one before waits for its ranks."""
    if (drill := _drill_of(options)) is not None:
        drill.at(Point.FORMING, missing)


def engine_of(options: RankOptions, engine: Engine) -> Engine:
    """The engine itself, unless there are drills."""
    drill = _drill_of(options)
    return engine if drill is None else DrilledEngine(engine, drill)


def drive_of(options: RankOptions) -> Callable[..., Drive]:
    """What makes the tick loop: Drive itself, unless there are drills."""
    drill = _drill_of(options)
    return Drive if drill is None else functools.partial(DrilledDrive, drill, Points(options))


class DrilledEngine:
    """Fits `Engine`; computes what the inner one computes."""

    def __init__(self, inner: Engine, drill: Drill) -> None:
        self.hidden_bytes = inner.hidden_bytes
        self._inner = inner
        self._drill = drill

    @property
    def memory(self) -> Memory:
        """The inner one's."""
        return self._inner.memory

    def compile(self, grammar: str) -> None:
        """See the inner one."""
        self._inner.compile(grammar)

    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """A point comes by after each layer."""

        def ran(layer: LayerId) -> None:
            layer_ran(layer)
            self._drill.at(Point.FORWARD, f"layer {layer} of tick {plan.tick}, {len(plan.rows)} rows")

        return self._inner.run(plan, hidden, ran)


class DrilledDrive(Drive):
    """A tick loop that may be struck before an event is taken, and after an effect has been carried out."""

    def __init__(self, drill: Drill, points: "Points", *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._drill = drill
        self._points = points

    def on(self, event: Event) -> None:
        """See Drive."""
        for point in self._points.before(event):
            self._drill.at(point, event)
        super().on(event)

    def _do(self, effect: Effect) -> None:
        super()._do(effect)
        for point in self._points.after(effect):
            self._drill.at(point, effect)


class Points:
    """Which points come by one rank. Prompts are of one chunk: each layer of a room is written once."""

    def __init__(self, options: RankOptions) -> None:
        first, last = options.group.layers(options.rank)
        self._layers = last - first
        self._decodes = options.group.role is RoleName.DECODE
        self._leads = options.rank == LEADER
        self._rooms: dict[int, Room] = {}  # of writes that have been posted, by ticket
        self._posted = Counter[Room]()
        self._moved = Counter[Room]()  # on prefill written, on decode landed

    def before(self, event: Event) -> Iterator[Point]:
        """An event is about to be taken."""
        match event:
            case Submit():
                yield Point.QUEUE
            case Baton():
                yield from self._baton(event)
            case Grant():
                yield Point.BOOTSTRAP
            case Combined(fact=fact) if fact is not None and fact.quiet and not self._decodes:
                yield Point.COMMITTED
            case Moved(ticket=ticket, result=result):
                room = self._rooms.pop(ticket)
                self._moved[room] += 1
                if result is Written.OK and self._moved[room] == self._layers:
                    yield Point.COMMIT
            case Commit(room=room):
                self._moved[room] += 1
                yield Point.COMMIT if self._moved[room] == self._layers else Point.LAYER
            case Ran() if self._decodes:
                yield Point.DECODE
            case _:
                pass

    def _baton(self, baton: Baton) -> Iterator[Point]:
        if any(isinstance(arrival, Submit) for arrival in baton.frame.arrivals):
            yield Point.QUEUE
        if baton.ballot is not None:
            yield Point.VOTE
        if not self._decodes and any(verdict.kind is Kind.QUIET for verdict in baton.frame.verdicts):
            yield Point.COMMITTED

    def after(self, effect: Effect) -> Iterator[Point]:
        """An effect has been carried out."""
        match effect:
            case SendNext(message=Baton(ballot=ballot)) if self._leads and ballot is not None:
                yield Point.VOTE
            case TellPeer(message=Grant()):
                yield Point.BOOTSTRAP
            case Post(ticket=ticket, room=room):
                self._rooms[ticket] = room
                self._posted[room] += 1
                if self._posted[room] > 1:
                    yield Point.LAYER
            case Observe(fact=fact) if self._decodes and fact.progress is Progress.SUCCESS:
                yield Point.COMMITTED
            case Observe(fact=fact) if not self._decodes and fact.progress is Progress.WAITING_FOR_INPUT:
                yield Point.VOTE
            case Forget(room=room):
                del self._posted[room], self._moved[room]
                if not self._decodes:
                    yield Point.DECODE
            case _:
                pass
