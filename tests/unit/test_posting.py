"""Every post ends in exactly one Moved, nothing blocks the caller, and nobody writes where it may not."""

import ctypes
import queue
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from waiting import eventually

from kvtransfer import posting as posting_module
from kvtransfer.edges import Edges
from kvtransfer.posting import Posting, Wrote
from kvtransfer.transports.faulty import Fault, Faults, FaultyTransport, Tally, with_faults
from tandem.core.effects import Post
from tandem.core.errors import ConfigError
from tandem.core.events import Moved, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.messages import Hello, Region

LAYERS, PAGES, SIZE = (4, 8), 6, 32
DEADLINE_S = 10


class Pool:
    """A page pool in a bytearray, at its real address."""

    def __init__(self, fill: int) -> None:
        self.bytes = bytearray([fill]) * ((LAYERS[1] - LAYERS[0]) * PAGES * SIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.region = Region(base, LayerId(LAYERS[0]), LayerId(LAYERS[1]), PAGES, SIZE)

    def block(self, layer: int, page: int) -> bytes:
        start = ((layer - LAYERS[0]) * PAGES + page) * SIZE
        return bytes(self.bytes[start : start + SIZE])


class CopyingTransport:
    """Writes by memcpy, when the gate is open."""

    kind = "copy"
    endpoint = "here"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def register(self, base: int, length: int) -> None: ...

    def connect(self, peer: Hello, deadline_s: float) -> None: ...

    def write(self, peer: Hello, blocks: Sequence[tuple[int, int, int]], deadline_s: float) -> Written:
        self.entered.release()
        assert self.gate.wait(DEADLINE_S)
        for source, destination, length in blocks:
            ctypes.memmove(destination, source, length)
        return Written.OK

    def close(self) -> None: ...


class Rig:
    """A prefill rank's posting and one decode rank d/0."""

    def __init__(self) -> None:
        self.source, self.target = Pool(7), Pool(0)
        self.transport = CopyingTransport()
        self.hello: Hello | None = self.incarnation(1)
        self.wrote: queue.SimpleQueue[Wrote] = queue.SimpleQueue()
        self.judged: list[tuple[Hello, Written]] = []
        self.edges = Edges(lambda: self.transport)
        self.edges.open("d")
        self.posting = Posting(self.edges, self.source, self.hello_of, self.wrote.put, self.judge)

    def judge(self, hello: Hello, result: Written) -> None:
        self.judged.append((hello, result))

    def incarnation(self, number: int) -> Hello:
        return Hello("d", RankId(0), 1, number, "f", "copy", "there", self.target.region)

    def hello_of(self, group: str, rank: RankId) -> Hello | None:
        return self.hello if (group, rank) == ("d", 0) else None

    def post(self, ticket: int, blocks: list[tuple[int, int]], layer: int = 5, peer: str = "d", room: int = 1) -> None:
        pages = tuple((PageId(source), PageId(destination)) for source, destination in blocks)
        self.posting.post(Post(ticket, Room(RequestId(room), 0), peer, RankId(0), LayerId(layer), pages))

    def take(self) -> Moved:
        return self.take_timed().moved

    def take_timed(self) -> Wrote:
        return self.wrote.get(timeout=DEADLINE_S)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.transport.gate.set()
    assert made.posting.close(DEADLINE_S)
    assert made.wrote.empty(), "a ticket was reported twice"


def test_pages_land_where_the_post_says(rig: Rig) -> None:
    rig.post(1, [(0, 5), (3, 2)])
    assert rig.take() == Moved(1, Written.OK)
    landed = [page for page in range(PAGES) if rig.target.block(5, page) == bytes([7]) * SIZE]
    assert landed == [2, 5]
    assert sum(rig.target.bytes) == 7 * 2 * SIZE, "nothing else was touched"


def test_a_write_says_when_it_was_taken_up_and_when_the_transport_had_it(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    inside_us = time.time_ns() // 1000
    rig.transport.gate.set()
    first, second = rig.take_timed(), rig.take_timed()
    assert 0 < first.taken_us <= first.begun_us <= inside_us <= first.ended_us
    assert first.ended_us <= second.taken_us <= second.begun_us <= second.ended_us, "one after the other"


def test_a_write_that_never_began_has_no_times(rig: Rig) -> None:
    rig.post(1, [(0, 0)], peer="x")
    wrote = rig.take_timed()
    assert (wrote.taken_us, wrote.begun_us, wrote.ended_us) == (0, 0, 0)


def test_an_unknown_peer_fails_as_settled(rig: Rig) -> None:
    rig.post(1, [(0, 0)], peer="x")
    assert rig.take() == Moved(1, Written.FAILED_SETTLED)


@pytest.mark.parametrize("blocks", [[(0, PAGES)], [(PAGES, 0)], [(0, -1)], [(0, 1), (1, 1 << 40)]])
def test_a_page_outside_the_region_is_never_written(rig: Rig, blocks: list[tuple[int, int]]) -> None:
    rig.post(1, blocks)
    assert rig.take() == Moved(1, Written.FAILED_SETTLED)
    assert sum(rig.target.bytes) == 0


@pytest.mark.parametrize("layer", [LAYERS[0] - 1, LAYERS[1]])
def test_a_layer_outside_the_region_is_never_written(rig: Rig, layer: int) -> None:
    rig.post(1, [(0, 0)], layer=layer)
    assert rig.take() == Moved(1, Written.FAILED_SETTLED)


def test_a_full_queue_is_an_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_module, "MAX_QUEUED", 2)
    rig.transport.gate.clear()
    rig.post(0, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    for ticket in (1, 2, 3):
        rig.post(ticket, [(0, 0)])
    assert rig.take() == Moved(3, Written.FAILED_SETTLED)
    rig.transport.gate.set()
    assert [rig.take() for _ in range(3)] == [Moved(ticket, Written.OK) for ticket in (0, 1, 2)]


def test_what_waits_for_a_lost_peer_fails_as_settled(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    rig.hello = None
    rig.transport.gate.set()
    assert [rig.take(), rig.take()] == [Moved(1, Written.OK), Moved(2, Written.FAILED_SETTLED)]
    assert rig.target.block(5, 1) == bytes(SIZE)


def test_a_successor_is_not_written_what_was_meant_for_its_predecessor(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    rig.hello = rig.incarnation(2)
    rig.post(3, [(2, 2)])
    rig.transport.gate.set()
    results = {moved.ticket: moved.result for moved in (rig.take(), rig.take(), rig.take())}
    assert results == {1: Written.OK, 2: Written.FAILED_SETTLED, 3: Written.OK}


def test_closing_fails_what_waits_and_gives_up_on_what_hangs(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    assert not rig.posting.close(0.0)
    assert rig.take() == Moved(2, Written.FAILED_SETTLED)
    rig.transport.gate.set()
    assert rig.take() == Moved(1, Written.OK)


def test_posts_of_a_room_that_has_been_stopped_are_dropped_unless_they_have_begun(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    for ticket, room in ((2, 1), (3, 2), (4, 1)):
        rig.post(ticket, [(1, 1)], room=room)
    rig.posting.drop(Room(RequestId(1), 0))
    assert [rig.take(), rig.take()] == [Moved(ticket, Written.FAILED_SETTLED) for ticket in (2, 4)]
    rig.transport.gate.set()
    assert [rig.take(), rig.take()] == [Moved(ticket, Written.OK) for ticket in (1, 3)]


def test_how_begun_writes_ended_is_told_and_nothing_of_others(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    rig.posting.drop(Room(RequestId(1), 0))
    rig.post(3, [(0, PAGES)])
    rig.transport.gate.set()
    assert {rig.take().ticket for _ in range(3)} == {1, 2, 3}
    assert rig.judged == [(rig.incarnation(1), Written.OK)]


def test_a_group_that_is_abandoned_gets_nothing_more(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    rig.post(2, [(1, 1)])
    rig.posting.abandon("x")
    rig.posting.abandon("d")
    assert rig.take() == Moved(2, Written.FAILED_SETTLED)
    rig.transport.gate.set()
    assert rig.take() == Moved(1, Written.OK)
    rig.post(3, [(2, 2)])
    assert rig.take() == Moved(3, Written.OK), "if it is open again"


def test_a_fence_waits_until_the_end_of_a_write_has_been_told(rig: Rig) -> None:
    rig.transport.gate.clear()
    rig.post(1, [(0, 0)])
    assert rig.transport.entered.acquire(timeout=DEADLINE_S)
    fenced = threading.Thread(target=rig.edges.fence, args=("d",))
    fenced.start()
    eventually(lambda: rig.edges._edges["d"].gate.shut)
    rig.post(2, [(1, 1)])
    rig.transport.gate.set()
    fenced.join(DEADLINE_S)
    assert rig.wrote.get_nowait().moved == Moved(1, Written.OK), "told by the time the fence is done"
    assert rig.take() == Moved(2, Written.FAILED_SETTLED)
    assert rig.target.block(5, 1) == bytes(SIZE)


def test_an_idle_worker_ends_and_the_next_post_starts_another(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting_module, "IDLE_S", 0.0)
    for ticket in range(20):
        rig.post(ticket, [(0, 0)])
        assert rig.take() == Moved(ticket, Written.OK)


# faults


def faulty(monkeypatch: pytest.MonkeyPatch, at: dict[int, Fault]) -> FaultyTransport:
    monkeypatch.setenv("TANDEM_TEST_FAULTS", "1")
    return FaultyTransport(CopyingTransport(), Faults(at, seconds=0.01), Tally())


def test_faults_need_their_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_TEST_FAULTS", raising=False)
    with pytest.raises(ConfigError, match="TANDEM_TEST_FAULTS"):
        FaultyTransport(CopyingTransport(), Faults({}), Tally())


@pytest.mark.parametrize(
    ("fault", "result", "at_once", "at_last"),
    [
        (Fault.FAIL_SETTLED, Written.FAILED_SETTLED, 0, 0),
        (Fault.FAIL_UNSETTLED, Written.FAILED_UNSETTLED, 0, 0),
        (Fault.DELAY, Written.OK, 64, 64),
        (Fault.LAND_LATE, Written.FAILED_UNSETTLED, None, 64),
        (Fault.LAND_PARTLY, Written.FAILED_UNSETTLED, 32, 32),
    ],
)
def test_a_fault_does_what_it_says_and_counts(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, result: Written, at_once: int | None, at_last: int
) -> None:
    source, target = Pool(1), Pool(0)
    transport = faulty(monkeypatch, {2: fault})
    peer = Hello("d", RankId(0), 1, 1, "f", "copy", "there", target.region)
    assert transport.write(peer, [(source.region.base, source.region.base, 1)], 1) is Written.OK
    blocks = [(source.region.base + n * SIZE, target.region.base + n * SIZE, SIZE) for n in range(2)]
    assert transport.write(peer, blocks, 1) is result
    if at_once is not None:
        assert sum(target.bytes) == at_once
    transport.close()
    assert sum(target.bytes) == at_last
    assert transport.tally.acted == {fault: 1}


def test_one_block_lands_in_half(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Pool(1), Pool(0)
    transport = faulty(monkeypatch, {1: Fault.LAND_PARTLY})
    peer = Hello("d", RankId(0), 1, 1, "f", "copy", "there", target.region)
    transport.write(peer, [(source.region.base, target.region.base, SIZE)], 1)
    assert sum(target.bytes) == SIZE // 2


def test_of_a_corrupted_block_one_byte_is_wrong_and_the_source_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Pool(1), Pool(0)
    source.bytes[3] = 2
    before = bytes(source.bytes)
    transport = faulty(monkeypatch, {1: Fault.CORRUPT})
    peer = Hello("d", RankId(0), 1, 1, "f", "copy", "there", target.region)
    assert transport.write(peer, [(source.region.base, target.region.base, SIZE)], 1) is Written.OK
    assert target.bytes[:SIZE] == b"\2" + before[1:SIZE]
    assert bytes(source.bytes) == before
    assert transport.tally.acted == {Fault.CORRUPT: 1}


def test_all_transports_of_a_process_count_their_writes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One per group of peers; the known answers of handshakes do not count."""
    monkeypatch.setenv("TANDEM_TEST_FAULTS", "1")
    monkeypatch.setenv("TANDEM_TEST_FAULT_PLAN", '{"at": {"2": "fail_settled"}}')
    source, target = Pool(1), Pool(0)
    make = with_faults(CopyingTransport)
    transports = [make(), make()]
    probe = target.region.base + 2 * SIZE
    peer = Hello("d", RankId(0), 1, 1, "f", "copy", "there", target.region, probe)
    for transport in transports:
        assert transport.write(peer, [(source.region.base, probe, 1)], 1) is Written.OK
    results = [one.write(peer, [(source.region.base, target.region.base, 1)], 1) for one in transports]
    assert results == [Written.OK, Written.FAILED_SETTLED]
