"""Prefill's replicated half, one input at a time."""

from prefill.role import WINDOW, PrefillRole
from tandem.core.config import Limits
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, Kind, Submit, Verdict
from tandem.core.plan import Emitted, Ended, Forgotten, HandedOff, Note, Opened, Row, Settled, Stopped, ToldPeer
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.slots import Flights

LIMITS = Limits(page_size=4, num_pages=8, context=64, chunked_prefill_size=6, max_prefill_tokens=8, max_rooms=4)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


class Bench:
    """A prefill role with what a scheduler does around it."""

    def __init__(self, limits: Limits = LIMITS, window: int = 2) -> None:
        self.role = PrefillRole(limits, window)
        self.flights = Flights()
        self.tick = Tick(0)

    def submit(self, number: int, prompt: int = 4, peer: str | None = "d0", **more) -> list[Note]:
        work = Work(room(number), tuple(range(prompt)), more.pop("max_tokens", 9), (0,), Sampling(), peer)
        return self.role.on_submit(Submit(work, more.pop("remaining_ms", 1_000)), now_ms=0)

    def verdict(self, number: int, kind: Kind) -> list[Note]:
        return self.role.on_verdict(Verdict(room(number), kind))

    def plan(self, slot: Slot = WINDOW) -> list[Row]:
        self.role.admit(0)
        rows = self.role.plan(slot)
        if rows:
            self.flights.launch(self.tick, slot, rows)
        self.tick = Tick(self.tick + 1)
        return rows

    def running(self, number: int, prompt: int = 4, **more) -> Row:
        """A request whose whole prompt is in flight; its last row."""
        self.submit(number, prompt, **more)
        if more.get("peer", "d0"):
            self.verdict(number, Kind.BOOTSTRAPPED)
        while not (rows := self.plan())[-1].samples:
            pass
        return rows[-1]


def spans(rows: list[Row]) -> list[tuple[int, int, int]]:
    return [(int(row.room.rid), row.start, row.end) for row in rows]


def test_a_request_waits_for_its_grants_before_it_takes_pages():
    bench = Bench()
    assert bench.submit(1) == [Opened(room(1), "d0")]
    assert bench.plan() == []
    assert bench.role.pool.free == 8
    bench.verdict(1, Kind.BOOTSTRAPPED)
    assert spans(bench.plan()) == [(1, 0, 4)]
    assert bench.role.pool.free == 7


def test_a_request_that_nobody_takes_over_waits_for_pages_only():
    bench = Bench()
    bench.submit(1, peer=None)
    assert spans(bench.plan()) == [(1, 0, 4)]


def test_prompts_share_a_tick_and_none_gets_more_than_its_share():
    bench = Bench()
    for number in (1, 2):
        bench.submit(number, prompt=10, peer=None)
    assert spans(bench.plan()) == [(1, 0, 6), (2, 0, 2)]
    assert spans(bench.plan()) == [(1, 6, 10), (2, 2, 6)]
    assert spans(bench.plan()) == [(2, 6, 10)]
    assert bench.plan() == []


def test_only_the_last_chunk_samples_and_the_table_covers_what_is_computed():
    bench = Bench()
    bench.submit(1, prompt=10, peer=None)
    first, last = *bench.plan(), *bench.plan()
    assert (first.samples, len(first.pages)) == (False, 2)
    assert (last.samples, len(last.pages)) == (True, 3)


def test_a_whole_prompts_pages_are_reserved_and_nobody_overtakes_the_head():
    bench = Bench()
    for number, prompt in ((1, 20), (2, 16), (3, 4)):
        bench.submit(number, prompt, peer=None)
    bench.plan()
    assert bench.role.pool.held(room(1)) == (0, 1, 2, 3, 4)
    assert bench.role.pool.free == 3
    assert bench.role.lengths() == (3, 2, 1)


def test_the_window_bounds_the_ticks_in_flight():
    bench = Bench(window=2)
    bench.submit(1, prompt=20, peer=None)
    bench.role.admit(0)
    for _ in range(2):
        assert bench.role.next_slot(WINDOW, bench.flights, frozenset()) == (WINDOW, True)
        bench.plan()
    assert bench.role.next_slot(WINDOW, bench.flights, frozenset()) == (NO_SLOT, False)
    assert bench.role.next_slot(WINDOW, bench.flights, frozenset({Tick(0)})) == (WINDOW, True)
    assert bench.plan(NO_SLOT) == []


def test_token_0_is_handed_off_and_quiet_frees_the_pages():
    bench = Bench()
    row = bench.running(1)
    assert bench.role.on_tokens(row, (7,)) == [Emitted(room(1), 0, 7), HandedOff(room(1), "d0", 7)]
    assert bench.role.pool.free == 7
    assert bench.verdict(1, Kind.QUIET) == [Settled(room(1), "d0"), Forgotten(room(1))]
    assert bench.role.pool.free == 8


def test_quiet_may_overtake_the_harvest_but_not_free_before_it():
    bench = Bench()
    row = bench.running(1)
    assert bench.verdict(1, Kind.QUIET) == []
    assert bench.role.pool.free == 7
    notes = bench.role.on_tokens(row, (7,))
    assert notes[-1] == Forgotten(room(1))
    assert HandedOff(room(1), "d0", 7) in notes


def test_a_first_token_that_is_the_last_ends_both_groups():
    bench = Bench()
    row = bench.running(1)
    assert bench.role.on_tokens(row, (0,)) == [
        Emitted(room(1), 0, 0),
        Ended(room(1), Reason.STOP),
        ToldPeer(room(1), "d0", Reason.PEER_ENDED),
        Stopped(room(1)),
    ]
    assert bench.role.pool.free == 7, "the writes of its KV may still be under way"


def test_without_a_peer_the_only_token_ends_the_request():
    bench = Bench()
    row = bench.running(1, peer=None, max_tokens=1)
    assert bench.role.on_tokens(row, (7,)) == [
        Emitted(room(1), 0, 7),
        Ended(room(1), Reason.LENGTH),
        Forgotten(room(1)),
    ]
    assert bench.role.pool.free == 8


def test_failed_is_never_permission_to_free():
    bench = Bench()
    bench.running(1)
    assert bench.verdict(1, Kind.FAILED) == [
        Ended(room(1), Reason.TRANSFER_FAILED),
        ToldPeer(room(1), "d0", Reason.TRANSFER_FAILED),
        Stopped(room(1)),
    ]
    assert bench.role.pool.free == 7
    assert bench.verdict(1, Kind.QUIET)[-1] == Forgotten(room(1))
    assert bench.role.pool.free == 8


def test_an_ended_request_gives_its_later_tokens_to_nobody():
    bench = Bench()
    row = bench.running(1)
    bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
    assert bench.role.on_tokens(row, (7,)) == []
    assert bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE)) == []
    assert bench.verdict(1, Kind.FAILED) == []


def test_before_anything_was_sent_an_abort_frees_at_once():
    bench = Bench()
    bench.submit(1)
    assert bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE)) == [
        Ended(room(1), Reason.CLIENT_GONE),
        ToldPeer(room(1), "d0", Reason.CLIENT_GONE),
        Settled(room(1), "d0"),
        Forgotten(room(1)),
    ]
    assert not bench.role.knows(room(1))


def test_who_ended_it_is_not_told_but_answered():
    bench = Bench()
    bench.submit(1)
    assert bench.role.on_abort(Abort(room(1), Reason.DEADLINE, "d0")) == [
        Ended(room(1), Reason.PEER_ENDED),
        Settled(room(1), "d0"),
        Forgotten(room(1)),
    ]


def test_a_deadline_ends_exactly_those_that_are_late():
    bench = Bench()
    bench.submit(1, remaining_ms=10)
    bench.submit(2, remaining_ms=20)
    assert bench.role.wake_ms() == 10
    assert bench.role.expire(9) == []
    assert Ended(room(1), Reason.DEADLINE) in bench.role.expire(10)
    assert bench.role.wake_ms() == 20
    assert bench.role.knows(room(2))


def test_one_request_too_many_is_refused_and_the_peer_need_not_wait():
    bench = Bench()
    for number in range(1, 5):
        bench.submit(number)
    assert bench.submit(5) == [
        Ended(room(5), Reason.QUEUE_FULL),
        ToldPeer(room(5), "d0", Reason.QUEUE_FULL),
        Settled(room(5), "d0"),
        Forgotten(room(5)),
    ]


def test_a_prompt_that_can_never_fit_is_refused():
    bench = Bench()
    assert Ended(room(1), Reason.TOO_LARGE) in bench.submit(1, prompt=33)
    assert Ended(room(2), Reason.TOO_LARGE) in bench.submit(2, prompt=20, max_tokens=45)
    assert Opened(room(3), "d0") in bench.submit(3, prompt=32)
