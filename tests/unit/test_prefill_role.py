"""Prefill's replicated half, one input at a time."""

import pytest
from msgspec.structs import replace

from prefill.role import WINDOW, PrefillRole
from tandem.core.config import QUIESCE_MS, Limits
from tandem.core.controls import BUCKET, Controls
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, Kind, Knobs, Submit, Verdict
from tandem.core.plan import (
    CutOff,
    Emitted,
    Ended,
    Forgotten,
    HandedOff,
    Note,
    Opened,
    Question,
    Row,
    Settled,
    Stopped,
    ToldPeer,
    Uncompiled,
)
from tandem.core.requests import PRIORITY_MS, Reason, Sampling, Work
from tandem.core.slots import Flights

LIMITS = Limits(page_size=4, num_pages=8, context=64, chunked_prefill_size=6, max_prefill_tokens=8, max_rooms=4)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


class Bench:
    """A prefill role with what a scheduler does around it."""

    def __init__(self, limits: Limits = LIMITS, window: int = 2) -> None:
        self.controls = Controls(limits)
        self.role = PrefillRole(limits, self.controls, window)
        self.flights = Flights()
        self.tick = Tick(0)

    def submit(
        self, number: int, prompt: int = 4, peer: str | None = "d0", like: int | None = None, **more
    ) -> list[Note]:
        """Prompts differ from the first token on, unless one is `like` another."""
        first = 100 * (like or number)
        tokens, max_tokens = tuple(range(first, first + prompt)), more.pop("max_tokens", 9)
        remaining_ms, now_ms = more.pop("remaining_ms", 1_000), more.pop("now_ms", 0)
        sampling = more.pop("sampling", Sampling())
        work = Work(room(number), tokens, max_tokens, (0,), sampling, peer, **more)
        return self.role.on_submit(Submit(work, remaining_ms), now_ms)

    def verdict(self, number: int, kind: Kind) -> list[Note]:
        return self.role.on_verdict(Verdict(room(number), kind))

    def plan(self, slot: Slot = WINDOW) -> list[Row]:
        decision = self.role.decide(slot, 0)
        assert (list(decision.asks), list(decision.notes)) == ([], [])
        if decision.rows:
            self.flights.launch(self.tick, slot, decision.rows)
        self.tick = Tick(self.tick + 1)
        return list(decision.rows)

    def running(self, number: int, prompt: int = 4, **more) -> Row:
        """A request whose whole prompt is in flight; its last row."""
        self.submit(number, prompt, **more)
        if more.get("peer", "d0"):
            self.verdict(number, Kind.BOOTSTRAPPED)
        while not (rows := self.plan())[-1].samples:
            pass
        return rows[-1]

    def harvest(self, rows: list[Row]) -> list[Note]:
        return [note for row in rows for note in self.role.on_tokens(row, (7,) if row.samples else ())]

    def done(self, number: int, prompt: int, **more) -> None:
        """A request that has come and gone; its prefix may be cached."""
        self.submit(number, prompt, peer=None, **more)
        while rows := self.plan():
            self.harvest(rows)
        assert not self.role.knows(room(number))


def spans(rows: list[Row]) -> list[tuple[int, int, int]]:
    return [(int(row.room.rid), row.start, row.end) for row in rows]


def test_a_request_waits_for_its_grants_before_it_takes_pages():
    bench = Bench()
    assert bench.submit(1) == [Opened(room(1), "d0", 4)]
    assert bench.plan() == []
    assert bench.role.pool.available == 8
    bench.verdict(1, Kind.BOOTSTRAPPED)
    assert spans(bench.plan()) == [(1, 0, 4)]
    assert bench.role.pool.available == 7


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
    assert bench.role.pool.available == 3
    assert bench.role.lengths() == (3, 2, 1)


def test_the_window_bounds_the_ticks_in_flight():
    bench = Bench(window=2)
    bench.submit(1, prompt=20, peer=None)
    bench.plan(NO_SLOT)
    for _ in range(2):
        assert bench.role.next_slot(WINDOW, bench.flights, frozenset()) == (WINDOW, True)
        bench.plan()
    assert bench.role.next_slot(WINDOW, bench.flights, frozenset()) == (NO_SLOT, False)
    assert bench.role.next_slot(WINDOW, bench.flights, frozenset({Tick(1)})) == (WINDOW, True)
    assert bench.plan(NO_SLOT) == []


def test_token_0_is_handed_off_and_quiet_frees_the_pages():
    bench = Bench()
    row = bench.running(1)
    assert bench.role.on_tokens(row, (7,)) == [Emitted(room(1), 0, 7), HandedOff(room(1), "d0", 7)]
    assert bench.role.pool.available == 7
    assert bench.verdict(1, Kind.QUIET) == [Settled(room(1), "d0"), Forgotten(room(1))]
    assert bench.role.pool.available == 8


def test_quiet_may_overtake_the_harvest_but_not_free_before_it():
    bench = Bench()
    row = bench.running(1)
    assert bench.verdict(1, Kind.QUIET) == []
    assert bench.role.pool.available == 7
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
    assert bench.role.pool.available == 7, "the writes of its KV may still be under way"


def test_without_a_peer_the_only_token_ends_the_request():
    bench = Bench()
    row = bench.running(1, peer=None, max_tokens=1)
    assert bench.role.on_tokens(row, (7,)) == [
        Emitted(room(1), 0, 7),
        Ended(room(1), Reason.LENGTH),
        Forgotten(room(1)),
    ]
    assert bench.role.pool.available == 8


def test_failed_is_never_permission_to_free():
    bench = Bench()
    bench.running(1)
    assert bench.verdict(1, Kind.FAILED) == [
        Ended(room(1), Reason.TRANSFER_FAILED),
        ToldPeer(room(1), "d0", Reason.TRANSFER_FAILED),
        Stopped(room(1)),
    ]
    assert bench.role.pool.available == 7
    assert bench.verdict(1, Kind.QUIET)[-1] == Forgotten(room(1))
    assert bench.role.pool.available == 8


def test_a_peer_that_keeps_pages_for_too_long_is_cut_off_and_hears_no_word_about_its_own():
    bench = Bench()
    row = bench.running(1)
    bench.verdict(1, Kind.FAILED)
    bench.harvest([row])
    assert bench.role.expire(50) == []
    assert bench.role.expire(50 + QUIESCE_MS) == [CutOff("d0")]
    assert bench.verdict(1, Kind.FENCED) == [Forgotten(room(1))]
    assert bench.role.pool.available == 8
    assert bench.role.held() == []


def test_a_peer_is_not_blamed_while_chunks_of_our_own_fly():
    bench = Bench()
    bench.submit(1, prompt=12)
    bench.verdict(1, Kind.BOOTSTRAPPED)
    first, second = bench.plan(), bench.plan()
    bench.verdict(1, Kind.FAILED)
    assert bench.role.expire(50) == []
    bench.harvest(first)
    assert bench.role.expire(50 + QUIESCE_MS) == []
    bench.harvest(second)
    assert bench.role.expire(60 + QUIESCE_MS) == []
    assert bench.role.expire(60 + 2 * QUIESCE_MS) == [CutOff("d0")]


def test_a_peer_that_was_cut_off_is_not_told_quiet_when_it_asks_later():
    """Its word was on its way while we cut it off. Of what had left for it before, nobody here knows."""
    bench = Bench()
    bench.running(1)
    bench.verdict(1, Kind.FAILED)
    bench.verdict(1, Kind.FENCED)
    assert bench.role.on_abort(Abort(room(1), Reason.DEADLINE, "d0")) == [Forgotten(room(1))]
    assert bench.role.on_abort(Abort(room(2), Reason.DEADLINE, "d0")) == [Settled(room(2), "d0"), Forgotten(room(2))]


def test_a_request_that_waits_for_its_first_tokens_forward_is_not_let_go_by_a_fence():
    bench = Bench()
    row = bench.running(1)
    assert bench.verdict(1, Kind.FENCED) == []
    assert bench.role.on_tokens(row, (0,))[-1] == Forgotten(room(1)), "its token was the last one"


def test_an_ended_request_gives_its_later_tokens_to_nobody():
    bench = Bench()
    row = bench.running(1)
    bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
    assert bench.role.on_tokens(row, (7,)) == []
    assert bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE)) == []
    assert bench.verdict(1, Kind.FAILED) == []


def test_no_further_chunk_of_an_ended_request_is_launched():
    bench = Bench()
    bench.submit(1, prompt=20, peer=None)
    assert spans(bench.plan()) == [(1, 0, 6)]
    bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
    assert bench.plan() == []
    assert bench.role.lengths() == (1, 0, 0)


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


def test_only_who_has_not_ended_is_waited_for():
    bench = Bench()
    bench.submit(1, prompt=4, remaining_ms=500)
    bench.running(2, prompt=4, remaining_ms=600)
    assert bench.role.wake_ms() == 500
    bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
    assert bench.role.wake_ms() == 600
    bench.role.on_abort(Abort(room(2), Reason.CLIENT_GONE))
    assert (bench.role.wake_ms(), bench.role.expire(600)) == (None, [])


def test_a_prompt_that_can_never_fit_is_refused_and_the_peer_need_not_wait():
    bench = Bench()
    assert bench.submit(1, prompt=33) == [
        Ended(room(1), Reason.TOO_LARGE),
        ToldPeer(room(1), "d0", Reason.TOO_LARGE),
        Settled(room(1), "d0"),
        Forgotten(room(1)),
    ]
    assert Ended(room(2), Reason.TOO_LARGE) in bench.submit(2, prompt=20, max_tokens=45)
    assert Opened(room(3), "d0", 32) in bench.submit(3, prompt=32)


# who goes first


def test_the_order_is_that_of_arrival_not_of_the_grants():
    bench = Bench()
    bench.submit(1)
    bench.submit(2)
    for number in (2, 1):
        bench.verdict(number, Kind.BOOTSTRAPPED)
    assert spans(bench.plan()) == [(1, 0, 4), (2, 0, 4)]


def test_a_higher_priority_goes_first():
    bench = Bench()
    bench.submit(1, peer=None, now_ms=0)
    bench.submit(2, peer=None, now_ms=5, priority=1)
    bench.submit(3, peer=None, now_ms=5, priority=1)
    assert spans(bench.plan()) == [(2, 0, 4), (3, 0, 4)]
    assert spans(bench.plan()) == [(1, 0, 4)]


@pytest.mark.parametrize(("later_ms", "first"), [(PRIORITY_MS - 1, 2), (PRIORITY_MS, 1), (PRIORITY_MS + 1, 1)])
def test_who_has_waited_long_enough_is_not_overtaken_by_priority(later_ms: int, first: int):
    bench = Bench()
    bench.submit(1, peer=None, now_ms=0)
    bench.submit(2, peer=None, now_ms=later_ms, priority=1)
    assert bench.plan()[0].room == room(first)


def test_a_lower_priority_waits_longer():
    bench = Bench()
    bench.submit(1, peer=None, now_ms=0, priority=-1)
    bench.submit(2, peer=None, now_ms=PRIORITY_MS - 1)
    assert spans(bench.plan()) == [(2, 0, 4), (1, 0, 4)]


def test_the_order_holds_between_the_chunks_of_a_prompt_too():
    bench = Bench()
    bench.submit(1, prompt=14, peer=None)
    assert spans(bench.plan()) == [(1, 0, 6)]
    bench.submit(2, prompt=10, peer=None, priority=1)
    assert spans(bench.plan()) == [(2, 0, 6), (1, 6, 8)]


def test_an_important_head_that_lacks_pages_is_not_overtaken():
    bench = Bench()
    bench.submit(1, prompt=16, peer=None)
    bench.plan()
    bench.submit(2, prompt=4, peer=None)
    bench.submit(3, prompt=20, peer=None, priority=1)
    bench.plan()
    assert bench.role.pool.available == 4
    assert bench.role.lengths() == (3, 2, 1)


def test_the_next_one_moves_up_when_the_head_has_ended():
    bench = Bench()
    bench.submit(1, prompt=16, peer=None)
    bench.plan()
    bench.submit(2, prompt=20, peer=None)
    bench.submit(3, prompt=4, peer=None)
    bench.plan()
    bench.role.on_abort(Abort(room(2), Reason.CLIENT_GONE))
    assert spans(bench.plan()) == [(1, 12, 16), (3, 0, 4)]


# how much of a prompt a tick takes


def test_what_the_operator_changes_holds_from_the_next_chunk_on():
    bench = Bench()
    for number in (1, 2):
        bench.submit(number, prompt=14, peer=None)
    assert spans(bench.plan()) == [(1, 0, 6), (2, 0, 2)]
    bench.controls.on_knobs(Knobs(max_prefill_tokens=5, chunked_prefill_size=3))
    assert spans(bench.plan()) == [(1, 6, 9), (2, 2, 4)]


def test_the_chunk_table_caps_a_chunk_by_where_it_begins():
    limits = Limits(page_size=64, num_pages=100, context=8192, chunked_prefill_size=600, max_prefill_tokens=4096)
    bench = Bench(limits)
    bench.controls.on_knobs(Knobs(chunk_table=(1000, 500, 200)))
    bench.submit(1, prompt=2 * BUCKET + 300, peer=None)
    ends = [row.end for _ in range(6) for row in bench.plan()]
    assert ends == [600, 1200, 1700, 2200, 2348]


# the prefix cache


def test_two_prompts_share_the_pages_of_their_common_prefix():
    bench = Bench()
    bench.submit(1, prompt=10, peer=None)
    first = [*bench.plan(), *bench.plan()]
    bench.harvest(first)
    row = bench.running(2, prompt=14, like=1, peer=None)
    assert (row.start, row.end) == (8, 14)
    assert row.tokens == tuple(range(108, 114))
    assert row.pages[:2] == first[-1].pages[:2]
    assert bench.role.pool.held(room(2)) == row.pages


def test_prompts_that_differ_in_their_first_page_share_nothing():
    bench = Bench()
    bench.done(1, prompt=8)
    assert spans([bench.running(2, prompt=8, peer=None)]) == [(2, 6, 8)]
    assert bench.role.pool.counts()["cached"] == 2


def test_salts_never_meet():
    bench = Bench()
    bench.done(1, prompt=5, salt="one")
    assert bench.running(2, prompt=5, like=1, peer=None, salt="other").start == 0
    assert bench.running(3, prompt=5, like=1, peer=None, salt="one").start == 4


@pytest.mark.parametrize(("prompt", "start"), [(4, 0), (5, 4), (8, 4), (9, 8)])
def test_at_least_one_token_of_a_prompt_is_computed(prompt: int, start: int):
    bench = Bench()
    bench.done(1, prompt=12)
    row = bench.running(2, prompt=prompt, like=1, peer=None)
    assert (row.start, row.end, row.samples) == (start, prompt, True)


def test_pages_are_shared_from_the_harvest_of_the_tick_that_filled_them_on():
    bench = Bench()
    bench.submit(1, prompt=10, peer=None)
    chunk = bench.plan()
    bench.submit(2, prompt=10, like=1, peer=None)
    assert spans(bench.plan()) == [(1, 6, 10), (2, 0, 4)], "nothing has come back yet"
    bench.harvest(chunk)
    bench.submit(3, prompt=10, like=1, peer=None)
    assert spans(bench.plan()) == [(2, 4, 10), (3, 4, 6)], "the first page is full, the second is not known to be"


def test_a_page_that_is_not_full_is_not_shared():
    bench = Bench()
    bench.done(1, prompt=7)
    assert bench.role.pool.counts()["cached"] == 1
    assert bench.running(2, prompt=9, like=1, peer=None).start == 4


@pytest.mark.parametrize("ended", ["aborted", "failed", "late"])
def test_nothing_of_a_request_that_has_ended_is_shared(ended: str):
    bench = Bench()
    row = bench.running(1, prompt=5)
    match ended:
        case "aborted":
            bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
        case "failed":
            bench.verdict(1, Kind.FAILED)
        case _:
            bench.role.expire(1_000)
    bench.harvest([row])
    bench.verdict(1, Kind.QUIET)
    bench.harvest([row])
    assert bench.role.pool.counts()["cached"] == 0
    assert bench.running(2, prompt=5, like=1, peer=None).start == 0


def test_shared_pages_stay_until_the_last_who_uses_them_has_gone():
    bench = Bench()
    bench.harvest([bench.running(1, prompt=5)])
    bench.harvest([bench.running(2, prompt=5, like=1)])
    shared = bench.role.pool.held(room(2))[0]
    bench.verdict(1, Kind.QUIET)
    assert bench.role.pool.available == 6
    assert shared in bench.role.pool.held(room(2))
    bench.verdict(2, Kind.QUIET)
    assert bench.role.pool.available == 8
    bench.role.pool.audit()


def test_a_hit_is_given_back_while_the_rest_of_the_pages_is_lacking():
    bench = Bench()
    bench.done(1, prompt=8)
    blocking = bench.running(2, prompt=20)
    assert bench.role.pool.available == 3
    bench.submit(3, prompt=16, like=1, peer=None)
    bench.submit(4, prompt=4, peer=None)
    assert bench.plan() == [], "the head lacks one page, and nobody overtakes it"
    assert bench.role.pool.held(room(3)) == ()
    assert bench.role.pool.available == 3
    bench.harvest([blocking])
    bench.verdict(2, Kind.QUIET)
    assert spans(bench.plan()) == [(3, 8, 14), (4, 0, 2)]


def test_the_head_gets_in_once_what_it_shares_is_published():
    bench = Bench()
    first = bench.running(1, prompt=20)
    bench.submit(2, prompt=20, like=1, peer=None)
    assert bench.plan() == [], "it lacks two pages"
    bench.harvest([first])
    assert spans(bench.plan()) == [(2, 16, 20)], "now it needs only one"


def test_cached_pages_that_nobody_uses_make_room():
    bench = Bench()
    for number in range(1, 5):
        bench.done(number, prompt=8)
    assert bench.role.pool.counts()["free"] == 0
    assert spans([bench.running(5, prompt=32, peer=None)]) == [(5, 30, 32)]


def test_without_a_prefix_cache_nothing_is_kept_or_shared():
    bench = Bench(replace(LIMITS, prefix_cache=False))
    bench.done(1, prompt=8)
    assert bench.role.pool.counts()["free"] == 8
    assert spans([bench.running(2, prompt=8, like=1, peer=None)]) == [(2, 6, 8)]


# polls


def test_a_room_is_asked_for_failure_while_it_goes_on_and_for_quiet_once_it_is_computed():
    bench = Bench()
    bench.submit(1)
    assert bench.role.polls() == {room(1): [Question.INTACT]}
    bench.verdict(1, Kind.BOOTSTRAPPED)
    (row,) = bench.plan()
    assert bench.role.polls() == {room(1): [Question.INTACT]}
    bench.role.on_tokens(row, (7,))
    assert bench.role.polls() == {room(1): [Question.INTACT, Question.QUIET]}
    bench.verdict(1, Kind.QUIET)
    assert bench.role.polls() == {}


def test_a_room_that_ended_early_is_asked_for_quiet_only():
    bench = Bench()
    bench.running(1)
    bench.running(2, peer=None)
    for number in (1, 2):
        bench.role.on_abort(Abort(room(number), Reason.CLIENT_GONE))
    assert bench.role.polls() == {room(1): [Question.QUIET], room(2): [Question.QUIET]}


def test_a_room_that_nobody_takes_over_has_nothing_to_be_asked():
    bench = Bench()
    bench.running(1, peer=None)
    assert bench.role.polls() == {}


# what looks back, and grammars

LOOKING_BACK = Sampling(frequency_penalty=1.0)
JSON = '{"type":"object"}'


def test_the_row_that_samples_knows_the_prompt_if_it_looks_back():
    bench = Bench()
    bench.submit(1, prompt=8, generated=3, sampling=LOOKING_BACK)
    bench.verdict(1, Kind.BOOTSTRAPPED)
    (first,), (last,) = bench.plan(), bench.plan()
    assert (first.past, first.generated, first.grammar) == ((), 0, "")
    assert (last.past, last.generated, last.grammar) == (tuple(range(100, 108)), 3, "")


def test_nobody_else_carries_more_than_its_tokens():
    bench = Bench()
    row = bench.running(1, generated=3)
    assert (row.past, row.generated, row.grammar) == ((), 0, "")


def test_the_first_token_says_how_much_of_the_prompt_was_cached():
    bench = Bench()
    assert bench.harvest([bench.running(1, prompt=6)])[0] == Emitted(room(1), 0, 7, 0)
    emitted, handed_off, *_ = bench.harvest([bench.running(2, prompt=6, like=1)])
    assert emitted == Emitted(room(2), 0, 7, 4)
    assert handed_off == HandedOff(room(2), "d0", 7, 4)


@pytest.mark.parametrize("kinds", [[Kind.BOOTSTRAPPED, Kind.COMPILED], [Kind.COMPILED, Kind.BOOTSTRAPPED]])
def test_grants_and_grammar_are_both_needed_in_either_order(kinds: list[Kind]):
    bench = Bench()
    assert bench.submit(1, grammar=JSON) == [Opened(room(1), "d0", 4), Uncompiled(room(1), JSON)]
    for kind in kinds:
        assert bench.plan() == []
        assert bench.verdict(1, kind) == []
    (row,) = bench.plan()
    assert (row.past, row.generated, row.grammar) == (tuple(range(100, 104)), 0, JSON)


def test_without_a_hand_over_the_grammar_alone_is_waited_for():
    bench = Bench()
    bench.submit(1, peer=None, max_tokens=1, grammar=JSON)
    assert bench.plan() == []
    bench.verdict(1, Kind.COMPILED)
    assert [row.room for row in bench.plan()] == [room(1)]


@pytest.mark.parametrize("granted", [False, True])
def test_a_bad_grammar_ends_its_request_on_both_sides(granted: bool):
    bench = Bench()
    bench.submit(1, grammar=JSON)
    if granted:
        bench.verdict(1, Kind.BOOTSTRAPPED)
    ended = bench.verdict(1, Kind.BAD_GRAMMAR)
    assert ended == [
        Ended(room(1), Reason.BAD_GRAMMAR),
        ToldPeer(room(1), "d0", Reason.BAD_GRAMMAR),
        Settled(room(1), "d0"),
        Forgotten(room(1)),
    ]
    assert not bench.role.knows(room(1))


def test_one_whose_grammar_is_being_compiled_holds_nobody_up():
    bench = Bench()
    bench.submit(1, grammar=JSON)
    assert bench.running(2).room == room(2)
    bench.role.on_abort(Abort(room(1), Reason.CLIENT_GONE))
    assert not bench.role.knows(room(1))


def test_a_prompt_without_numbers_ends_on_both_sides_and_is_shared_no_further():
    bench = Bench()
    row = bench.running(1)
    told = ToldPeer(room(1), "d0", Reason.NOT_A_NUMBER)
    assert bench.role.on_tokens(row, ()) == [Ended(room(1), Reason.NOT_A_NUMBER), told, Stopped(room(1))]
    assert bench.verdict(1, Kind.QUIET)[-1] == Forgotten(room(1))
    assert bench.role.pool.counts()["cached"] == 0
