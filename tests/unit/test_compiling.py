"""The thread that compiles grammars: in order, with a verdict for each, and within a time."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from tandem.core.effects import Compile
from tandem.core.errors import ConfigError
from tandem.core.events import Compiled
from tandem.core.ids import RequestId, Room
from tandem.runtime import compiling
from tandem.runtime.compiling import PATIENCE_S, Compiling

DEADLINE_S = 30.0


def job(number: int, grammar: str = "{}") -> Compile:
    return Compile(Room(RequestId(number), 1), grammar)


def said(number: int, ok: bool) -> Compiled:
    return Compiled(Room(RequestId(number), 1), ok)


class Bench:
    """A thread, what it has told, and a clock that stands still until it is set."""

    def __init__(self, compile: Callable[[str], None]) -> None:
        self.told: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.now_s = 0.0
        self.thread = Compiling(compile, self.told.put, self.told.put, lambda: self.now_s)

    def next(self, count: int) -> list[object]:
        return [self.told.get(timeout=DEADLINE_S) for _ in range(count)]


@pytest.fixture
def start() -> Iterator[Callable[..., Bench]]:
    started: list[Bench] = []

    def make(compile: Callable[[str], None]) -> Bench:
        started.append(Bench(compile))
        return started[-1]

    yield make
    for bench in started:
        bench.thread.close(DEADLINE_S)
        assert not bench.thread._thread.is_alive()


def picky(grammar: str) -> None:
    if grammar == "bad":
        raise ValueError("it is bad")
    if grammar == "no tokenizer":
        raise ConfigError("there is none")
    if grammar == "bug":
        raise RuntimeError("ours")


def test_each_grammar_gets_its_verdict_in_order(start: Callable[..., Bench]):
    bench = start(picky)
    for number, grammar in enumerate(["good", "bad", "no tokenizer", "good"]):
        bench.thread.put(job(number, grammar))
    assert bench.next(4) == [said(0, True), said(1, False), said(2, False), said(3, True)]


def test_a_bug_is_heard_of(start: Callable[..., Bench]):
    bench = start(picky)
    bench.thread.put(job(1, "bug"))
    assert [str(error) for error in bench.next(1)] == ["ours"]


def test_one_that_takes_too_long_is_bad_and_so_is_who_waited_too_long(start: Callable[..., Bench]):
    compiled: list[str] = []

    def slow(grammar: str) -> None:
        compiled.append(grammar)
        go.wait(DEADLINE_S)
        bench.now_s = PATIENCE_S + 1

    go = threading.Event()
    bench = start(slow)
    for number, grammar in enumerate(["slow", "waits"]):
        bench.thread.put(job(number, grammar))
    go.set()
    assert bench.next(2) == [said(0, False), said(1, False)]
    assert compiled == ["slow"]


def busy(start: Callable[..., Bench]) -> tuple[Bench, threading.Event]:
    """It compiles for room 1 until the event is set, and room 2 waits."""
    begun, go = threading.Event(), threading.Event()

    def held(grammar: str) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)

    bench = start(held)
    bench.thread.put(job(1))
    assert begun.wait(DEADLINE_S)
    bench.thread.put(job(2))
    return bench, go


def test_nobody_waits_where_too_many_do(start: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiling, "MOST_WAITING", 1)
    bench, go = busy(start)
    bench.thread.put(job(3))
    assert bench.next(1) == [said(3, False)]
    go.set()
    assert bench.next(2) == [said(1, True), said(2, True)]


def test_what_waits_is_left_when_the_end_comes(start: Callable[..., Bench]):
    bench, go = busy(start)
    closing = threading.Thread(target=bench.thread.close, args=(DEADLINE_S,))
    closing.start()
    while not bench.thread._closed:
        pass
    go.set()
    closing.join(DEADLINE_S)
    assert bench.next(1) == [said(1, True)]
    assert bench.told.empty()
