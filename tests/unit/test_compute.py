"""The engine's thread: plans and copies in order, an event for what happens, and a failure that is heard of."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from consensus.pulse import Pulse
from tandem.core.effects import BackUp, Restore
from tandem.core.events import BackedUp, LayerRan, Ran, Started
from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Logprobs, Sampling
from tandem.ports import NOTHING_SAMPLED, Sampled
from tandem.runtime.compute import ComputeThread

DEADLINE_S = 30.0
ROOM, OTHER = Room(RequestId(1), 1), Room(RequestId(2), 1)


def row(room: Room, *, samples: bool = True) -> Row:
    return Row(room, (1,), 0, (PageId(0),), samples, Sampling())


def plan(tick: int, *rows: Row) -> Plan:
    return Plan(Tick(tick), NO_SLOT, rows, (), (), 0)


class Engine:
    """Two layers; gives back `result`, raises it if it is an error, and keeps what it was given."""

    def __init__(self, result: Sampled | memoryview | BaseException) -> None:
        self.result = result
        self.given: list[tuple[Plan, bytes | None]] = []

    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        self.given.append((plan, None if hidden is None else bytes(hidden)))
        layer_ran(LayerId(0))
        if isinstance(self.result, BaseException):
            raise self.result
        layer_ran(LayerId(1))
        return self.result


class Host:
    """Tells of each copy where the thread tells of everything else."""

    def __init__(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    def save(self, pages: Sequence[PageId], host_pages: Sequence[PageId]) -> None:
        self._tell(("saved", *pages, "to", *host_pages))

    def load(self, host_pages: Sequence[PageId], pages: Sequence[PageId]) -> None:
        if not pages:
            raise IndexError("nothing to load")
        self._tell(("loaded", *host_pages, "to", *pages))


class Told:
    """A compute thread, and what it has told."""

    def __init__(self, engine: Engine, *, layers: bool) -> None:
        self.queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        tell, host = self.queue.put, Host(self.queue.put)
        self.pulse = Pulse(0.0)
        self.thread = ComputeThread(engine, host, tell, tell, self.pulse, layers=layers)  # type: ignore[arg-type]

    def next(self, count: int) -> list[object]:
        return [self.queue.get(timeout=DEADLINE_S) for _ in range(count)]


@pytest.fixture
def start() -> Iterator[Callable[..., Told]]:
    started: list[Told] = []

    def make(engine: Engine, *, layers: bool = False) -> Told:
        started.append(Told(engine, layers=layers))
        return started[-1]

    yield make
    for told in started:
        told.thread.close(DEADLINE_S)
        assert not told.thread._thread.is_alive()


def test_the_last_stage_tells_whose_tokens_it_has_drawn(start: Callable[..., Told]):
    told = start(Engine(Sampled(((7,), (8,)))))
    told.thread.submit(plan(3, row(ROOM), row(Room(RequestId(9), 1), samples=False), row(OTHER)), None)
    assert told.next(2) == [Started(Tick(3)), Ran(Tick(3), ((ROOM, (7,)), (OTHER, (8,))))]


def test_log_probabilities_are_told_with_the_tokens(start: Callable[..., Told]):
    logprobs = (Logprobs(-0.5, ((7, -0.5),)),)
    told = start(Engine(Sampled(((7,),), logprobs)))
    told.thread.submit(plan(3, row(ROOM)), None)
    assert told.next(2)[1] == Ran(Tick(3), ((ROOM, (7,)),), logprobs)


def test_another_stage_keeps_its_hidden_states_until_they_are_taken(start: Callable[..., Told]):
    engine = Engine(memoryview(b"out"))
    told = start(engine)
    told.thread.submit(plan(3, row(ROOM)), memoryview(b"in"))
    assert told.next(2) == [Started(Tick(3)), Ran(Tick(3), ())]
    assert engine.given == [(plan(3, row(ROOM)), b"in")]
    assert told.thread.take_output(Tick(3)) == b"out"
    with pytest.raises(KeyError):
        told.thread.take_output(Tick(3))


def test_plans_run_one_after_the_other_in_order(start: Callable[..., Told]):
    told = start(Engine(NOTHING_SAMPLED))
    for tick in range(3):
        told.thread.submit(plan(tick), None)
    assert told.next(6) == [event for tick in range(3) for event in (Started(Tick(tick)), Ran(Tick(tick), ()))]


def test_layers_are_told_to_those_who_send_them(start: Callable[..., Told]):
    told = start(Engine(NOTHING_SAMPLED), layers=True)
    told.thread.submit(plan(1), None)
    layers = [LayerRan(Tick(1), LayerId(layer)) for layer in (0, 1)]
    assert told.next(4) == [Started(Tick(1)), *layers, Ran(Tick(1), ())]


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_an_engine_that_raises_is_heard_of(start: Callable[..., Told], error: BaseException):
    told = start(Engine(error), layers=True)
    told.thread.submit(plan(1), None)
    assert told.next(3) == [Started(Tick(1)), LayerRan(Tick(1), LayerId(0)), error]


def test_copies_are_made_in_order_with_the_forwards(start: Callable[..., Told]):
    told = start(Engine(NOTHING_SAMPLED))
    one, two = (PageId(1),), (PageId(2),)
    told.thread.submit(plan(1), None)
    told.thread.back_up(BackUp(ROOM, one, two))
    told.thread.submit(plan(2), None)
    told.thread.restore(Restore(ROOM, two, one))
    told.thread.submit(plan(3), None)
    ran = {tick: [Started(Tick(tick)), Ran(Tick(tick), ())] for tick in (1, 2, 3)}
    saved, loaded = ("saved", 1, "to", 2), ("loaded", 2, "to", 1)
    assert told.next(9) == [*ran[1], saved, BackedUp(ROOM), *ran[2], loaded, *ran[3]]


def test_a_copy_that_fails_is_heard_of(start: Callable[..., Told]):
    told = start(Engine(NOTHING_SAMPLED))
    told.thread.restore(Restore(ROOM, (), ()))
    assert isinstance(told.next(1)[0], IndexError)


def test_tokens_that_do_not_fit_the_rows_are_a_failure(start: Callable[..., Told]):
    told = start(Engine(Sampled(((7,), (8,)))))
    told.thread.submit(plan(1, row(ROOM)), None)
    assert isinstance(told.next(2)[1], ValueError)


def test_what_has_not_begun_when_it_ends_is_left(start: Callable[..., Told]):
    going_on, may_end = threading.Event(), threading.Event()
    engine = Engine(NOTHING_SAMPLED)
    told = start(engine)
    run = engine.run

    def slow(*given: object) -> object:
        going_on.set()
        assert may_end.wait(DEADLINE_S)
        return run(*given)  # type: ignore[arg-type]

    engine.run = slow  # type: ignore[assignment,method-assign]
    told.thread.submit(plan(1), None)
    told.thread.submit(plan(2), None)
    assert going_on.wait(DEADLINE_S)
    told.thread.close(0)
    may_end.set()
    told.thread.close(DEADLINE_S)
    assert [given.tick for given, _ in engine.given] == [1]
    assert told.thread.ran == 1


def test_every_layer_is_a_sign_of_life(start: Callable[..., Told], monkeypatch: pytest.MonkeyPatch):
    told = start(Engine(NOTHING_SAMPLED))
    felt: list[float] = []
    monkeypatch.setattr(told.pulse, "layer_ran", felt.append)
    told.thread.submit(plan(1), None)
    told.next(2)
    assert len(felt) == 2


def test_nothing_runs_after_the_end(start: Callable[..., Told]):
    engine = Engine(NOTHING_SAMPLED)
    told = start(engine)
    told.thread.close(DEADLINE_S)
    told.thread.submit(plan(1), None)
    assert engine.given == []
