"""Decode's replicated half, one input at a time."""

from decode.role import RETRY_MS, DecodeRole
from tandem.core.config import Limits
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.plan import MAX_ASKS, Ask, Emitted, Ended, Forgotten, Granted, Note, Question, Returned, Row, ToldPeer
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.slots import Flights

LIMITS = Limits(page_size=4, num_pages=8, context=64)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


def ask(number: int) -> Ask:
    return Ask(Question.PREALLOC, room(number), "p0")


class Bench:
    """A decode role with what a scheduler does around it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.role = DecodeRole(limits, 1)
        self.flights = Flights()

    def submit(self, number: int, prompt: int = 4, max_tokens: int = 4, remaining_ms: int = 1_000) -> list[Note]:
        work = Work(room(number), tuple(range(prompt)), max_tokens, (0,), Sampling(), "p0")
        return self.role.on_submit(Submit(work, remaining_ms), now_ms=0)

    def granted(self, number: int, **more: int) -> None:
        self.submit(number, **more)
        assert ask(number) in self.role.admit(0)
        self.role.on_outcome(ask(number), True, 0)

    def running(self, number: int, **more: int) -> None:
        self.granted(number, **more)
        self.role.on_first_token(FirstToken(room(number), 7))
        self.verdict(number, Kind.TRANSFERRED)

    def verdict(self, number: int, kind: Kind) -> list[Note]:
        return self.role.on_verdict(Verdict(room(number), kind))

    def abort(self, number: int, peer: str | None = None) -> list[Note]:
        return self.role.on_abort(Abort(room(number), Reason.CLIENT_GONE, peer))

    def plan(self, slot: int = 0) -> list[Row]:
        return self.role.plan(Slot(slot))

    def pages(self) -> tuple[int, int, int]:
        """Free, owned, quarantined."""
        free, owned, quarantined = self.role.pool.counts().values()
        return free, owned, quarantined


def test_pages_are_given_before_the_vote_and_granted_by_it():
    bench = Bench()
    assert bench.submit(1, prompt=6) == []
    assert bench.role.admit(0) == [ask(1)]
    assert bench.pages() == (6, 2, 0)
    assert bench.role.on_outcome(ask(1), True, 0) == [Granted(room(1), "p0", 6, (0, 1))]


def test_after_a_no_the_pages_go_back_and_the_request_pauses():
    bench = Bench()
    bench.submit(1)
    bench.role.admit(0)
    assert bench.role.on_outcome(ask(1), False, 5) == [Returned(room(1))]
    assert bench.pages() == (8, 0, 0)
    assert bench.role.admit(5) == []
    assert bench.role.wake_ms() == 5 + RETRY_MS
    assert bench.role.admit(5 + RETRY_MS - 1) == []
    assert bench.role.admit(5 + RETRY_MS) == [ask(1)]


def test_one_that_pauses_holds_nobody_up():
    bench = Bench()
    bench.submit(1)
    bench.role.admit(0)
    bench.role.on_outcome(ask(1), False, 0)
    bench.submit(2)
    assert bench.role.admit(1) == [ask(2)]


def test_a_refused_request_keeps_its_place_in_the_queue():
    bench = Bench()
    for number in (1, 2):
        bench.submit(number)
    assert bench.role.admit(0) == [ask(1), ask(2)]
    bench.submit(3)
    bench.role.on_outcome(ask(2), False, 0)
    bench.role.on_outcome(ask(1), False, 0)
    assert bench.role.admit(RETRY_MS) == [ask(1), ask(2), ask(3)]


def test_a_tick_asks_no_more_than_fits_into_a_ballot():
    bench = Bench(Limits(page_size=4, num_pages=1_000, context=64))
    for number in range(MAX_ASKS + 5):
        bench.submit(number)
    assert len(bench.role.admit(0)) == MAX_ASKS
    assert len(bench.role.admit(0)) == 5


def test_the_head_waits_for_pages_and_nobody_overtakes_it():
    bench = Bench()
    bench.granted(1, prompt=20)
    bench.submit(2, prompt=16)
    bench.submit(3, prompt=4)
    assert bench.role.admit(0) == []
    assert bench.role.lengths() == (3, 2, 0)


def test_kv_and_first_token_are_both_needed_in_either_order():
    for first in (True, False):
        bench = Bench()
        bench.granted(1)
        notes = [
            lambda bench=bench: bench.role.on_first_token(FirstToken(room(1), 7)),
            lambda bench=bench: bench.verdict(1, Kind.TRANSFERRED),
        ]
        one, other = notes if first else reversed(notes)
        assert one() == []
        assert bench.plan() == []
        assert other() == [Emitted(room(1), 0, 7)]
        assert [row.tokens for row in bench.plan()] == [(7,)]


def test_a_second_first_token_says_nothing_new():
    bench = Bench()
    bench.running(1)
    assert bench.role.on_first_token(FirstToken(room(1), 8)) == []


def test_tokens_are_counted_until_the_end():
    bench = Bench()
    bench.running(1, max_tokens=3)
    (row,) = bench.plan()
    assert bench.role.on_tokens(row, (8,)) == [Emitted(room(1), 1, 8)]
    (row,) = bench.plan()
    assert bench.role.on_tokens(row, (9,)) == [
        Emitted(room(1), 2, 9),
        Ended(room(1), Reason.LENGTH),
        Forgotten(room(1)),
    ]
    assert bench.pages() == (8, 0, 0)


def test_a_stop_id_ends_it_early():
    bench = Bench()
    bench.running(1, max_tokens=20)
    (row,) = bench.plan()
    assert Ended(room(1), Reason.STOP) in bench.role.on_tokens(row, (0,))


def test_an_abort_in_the_queue_frees_at_once_and_tells_prefill():
    bench = Bench()
    bench.submit(1)
    told = ToldPeer(room(1), "p0", Reason.CLIENT_GONE)
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE), told, Forgotten(room(1))]


def test_an_abort_during_the_vote_waits_for_its_outcome():
    for yes in (True, False):
        bench = Bench()
        bench.submit(1)
        bench.role.admit(0)
        assert Ended(room(1), Reason.CLIENT_GONE) in bench.abort(1)
        assert bench.pages() == (7, 1, 0)
        assert bench.abort(1) == []
        assert bench.role.on_outcome(ask(1), yes, 0) == [Returned(room(1)), Forgotten(room(1))]
        assert bench.pages() == (8, 0, 0)


def test_pages_that_prefill_may_write_into_are_quarantined_until_quiet():
    bench = Bench()
    bench.granted(1)
    assert bench.abort(1) == [
        Ended(room(1), Reason.CLIENT_GONE),
        ToldPeer(room(1), "p0", Reason.CLIENT_GONE),
    ]
    assert bench.pages() == (7, 0, 1)
    assert bench.verdict(1, Kind.FAILED) == []
    assert bench.verdict(1, Kind.TRANSFERRED) == []
    assert bench.verdict(1, Kind.QUIET) == [Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_quiet_that_came_first_lets_the_pages_go_with_the_request():
    bench = Bench()
    bench.granted(1)
    assert bench.verdict(1, Kind.QUIET) == []
    assert bench.abort(1, peer="p0") == [Ended(room(1), Reason.PEER_ENDED), Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_prefill_is_asked_for_quiet_even_if_it_was_prefill_that_ended_it():
    bench = Bench()
    bench.granted(1)
    assert bench.abort(1, peer="p0") == [
        Ended(room(1), Reason.PEER_ENDED),
        ToldPeer(room(1), "p0", Reason.PEER_ENDED),
    ]


def test_a_forward_in_flight_keeps_the_pages_of_an_aborted_request():
    bench = Bench()
    bench.running(1)
    (row,) = bench.plan()
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE)]
    assert bench.pages() == (7 - 1, 2, 0)
    assert bench.plan() == []
    assert bench.role.on_tokens(row, (8,)) == [Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_a_running_request_with_nothing_in_flight_ends_in_the_same_tick():
    bench = Bench()
    bench.running(1)
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE), Forgotten(room(1))]
    assert bench.plan() == []


def test_a_deadline_ends_exactly_those_that_are_late():
    bench = Bench()
    bench.submit(1, remaining_ms=10)
    bench.submit(2, remaining_ms=20)
    assert bench.role.wake_ms() == 10
    assert bench.role.expire(9) == []
    assert Ended(room(1), Reason.DEADLINE) in bench.role.expire(10)
    assert bench.role.expire(19) == []


def test_a_request_that_is_over_has_no_deadline_any_more():
    bench = Bench()
    bench.granted(1, remaining_ms=10)
    bench.abort(1)
    assert bench.role.wake_ms() is None
    assert bench.role.expire(99) == []


def test_what_can_never_grow_to_its_end_is_refused():
    bench = Bench()
    assert Ended(room(1), Reason.TOO_LARGE) in bench.submit(1, prompt=30, max_tokens=4)
    assert bench.submit(2, prompt=30, max_tokens=3) == []


def test_the_slot_of_a_flying_tick_is_not_named():
    bench = Bench()
    bench.running(1)
    rows = bench.plan()
    bench.flights.launch(Tick(3), Slot(0), rows)
    assert bench.role.next_slot(Slot(0), bench.flights, frozenset()) == (NO_SLOT, False)
    assert bench.role.next_slot(Slot(0), bench.flights, frozenset({Tick(3)})) == (0, True)
