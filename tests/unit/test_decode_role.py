"""Decode's replicated half, one input at a time: from the queue to the last token. Making room is in another file."""

import pytest
from decode_bench import Bench, ask, room

from decode.admission import RETRY_MS
from decode.role import DecodeRole
from tandem.core.config import Limits
from tandem.core.errors import IllegalTransition
from tandem.core.ids import NO_SLOT, Slot, Tick
from tandem.core.inputs import FirstToken, Kind
from tandem.core.plan import (
    MAX_ASKS,
    Ask,
    CutOff,
    Emitted,
    Ended,
    Forgotten,
    Granted,
    Question,
    Returned,
    ToldPeer,
    Uncompiled,
)
from tandem.core.requests import PRIORITY_MS, Reason, Sampling
from tandem.core.slots import Flights

ROOMY = Limits(page_size=4, num_pages=1_000, context=64)

# the queue and the vote


def test_pages_are_given_before_the_vote_and_granted_by_it():
    bench = Bench()
    assert bench.submit(1, prompt=6) == []
    assert bench.asks() == [ask(1)]
    assert bench.pages() == (6, 2, 0)
    assert bench.outcome(ask(1)) == [Granted(room(1), "p0", 6, 0, (0, 1))]


def test_after_a_no_the_pages_go_back_and_the_request_pauses():
    bench = Bench()
    bench.submit(1)
    bench.asks()
    assert bench.outcome(ask(1), yes=False, now_ms=5) == [Returned(room(1))]
    assert bench.pages() == (8, 0, 0)
    assert bench.asks() == []
    assert bench.role.wake_ms() == 5 + RETRY_MS
    bench.role.expire(5 + RETRY_MS - 1)
    assert bench.asks() == []
    bench.role.expire(5 + RETRY_MS)
    assert bench.role.wake_ms() == 1_000, "a pause that is over must not wake anybody again"
    assert bench.asks() == [ask(1)]


def test_one_that_pauses_holds_nobody_up():
    bench = Bench()
    bench.submit(1)
    bench.asks()
    bench.outcome(ask(1), yes=False)
    bench.submit(2)
    assert bench.asks() == [ask(2)]


def test_a_refused_request_keeps_its_place_in_the_queue():
    bench = Bench()
    for number in (1, 2):
        bench.submit(number)
    assert bench.asks() == [ask(1), ask(2)]
    bench.submit(3)
    bench.outcome(ask(2), yes=False)
    bench.outcome(ask(1), yes=False)
    bench.role.expire(RETRY_MS)
    assert bench.asks() == [ask(1), ask(2), ask(3)]


def test_priority_goes_first_and_waiting_makes_up_for_it():
    bench = Bench()
    bench.submit(1, priority=-1)
    bench.submit(2, priority=1)
    bench.submit(3, now_ms=1)
    bench.submit(4, priority=1, now_ms=2 * PRIORITY_MS + 1)
    assert bench.asks() == [ask(2), ask(3), ask(1), ask(4)]


def test_a_tick_asks_no_more_than_fits_into_a_ballot():
    bench = Bench(ROOMY)
    for number in range(MAX_ASKS + 5):
        bench.submit(number)
    assert len(bench.asks()) == MAX_ASKS
    assert len(bench.asks()) == 5


def test_the_head_waits_for_pages_and_nobody_overtakes_it():
    bench = Bench()
    bench.granted(1, prompt=20)
    bench.submit(2, prompt=16)
    bench.submit(3, prompt=4)
    assert bench.asks() == []
    assert bench.role.lengths() == (3, 2, 0)


def test_a_newcomer_is_let_in_only_if_the_oldest_could_still_grow_to_its_end():
    bench = Bench()
    bench.granted(1, prompt=4, max_tokens=21)
    bench.submit(2, prompt=12)
    assert bench.asks() == [], "1 may need 5 more of the 7 pages"
    bench.abort(2)
    bench.submit(3, prompt=8)
    assert bench.asks() == [ask(3)]


def test_one_that_waits_is_let_in_when_the_oldest_has_ended():
    bench = Bench()
    bench.granted(1, prompt=4, max_tokens=21)
    bench.submit(2, prompt=12, max_tokens=5)
    assert bench.asks() == []
    bench.abort(1)
    assert bench.pages() == (7, 0, 1)
    assert bench.asks() == [ask(2)]


def test_a_question_that_decode_never_asks_is_a_bug():
    bench = Bench()
    bench.submit(1)
    with pytest.raises(IllegalTransition, match="no such question"):
        bench.outcome(Ask(Question.QUIET, room(1)))


# the prefix cache

SHARED = tuple(range(500, 512))


def test_pages_of_a_known_prefix_are_shared_and_only_the_rest_is_granted():
    bench = Bench()
    bench.running(1, tokens=SHARED)
    bench.submit(2, tokens=(*SHARED, 1))
    assert bench.asks() == [ask(2)]
    assert bench.outcome(ask(2)) == [Granted(room(2), "p0", 13, 3, (3,))]
    assert bench.pages() == (4, 1, 0)


def test_at_least_one_token_of_a_prompt_is_transferred():
    bench = Bench()
    bench.running(1, tokens=SHARED)
    bench.submit(2, tokens=SHARED)
    bench.asks()
    assert bench.outcome(ask(2)) == [Granted(room(2), "p0", 12, 2, (3,))]


def test_prompts_of_different_salts_never_meet():
    bench = Bench()
    bench.running(1, tokens=SHARED, salt="a", max_tokens=1)
    bench.submit(2, tokens=SHARED, salt="b", max_tokens=1)
    bench.asks()
    assert bench.outcome(ask(2)) == [Granted(room(2), "p0", 12, 0, (3, 4, 5))]


def test_nothing_is_shared_without_a_prefix_cache():
    bench = Bench(Limits(page_size=4, num_pages=8, context=64, prefix_cache=False))
    bench.running(1, tokens=SHARED)
    bench.submit(2, tokens=SHARED)
    bench.asks()
    assert bench.outcome(ask(2)) == [Granted(room(2), "p0", 12, 0, (3, 4, 5))]


def test_a_hit_stays_cached_when_the_vote_says_no():
    bench = Bench()
    bench.running(1, tokens=SHARED)
    bench.submit(2, tokens=SHARED)
    bench.asks()
    bench.outcome(ask(2), yes=False)
    assert bench.pages() == (5, 0, 0)
    bench.role.expire(RETRY_MS)
    bench.asks()
    assert bench.outcome(ask(2)) == [Granted(room(2), "p0", 12, 2, (3,))]


def test_a_hit_that_is_not_enough_to_be_let_in_is_not_kept():
    """It may look as if the cache had everything, when it has a page of the prompt only."""
    bench = Bench()
    bench.running(1, tokens=SHARED, max_tokens=12)
    bench.submit(2, tokens=(*SHARED[:4], *range(12)))
    assert bench.asks() == []
    assert bench.pages() == (5, 0, 0)
    waits = bench.role.pool.freed_at
    assert bench.asks() == []
    assert bench.role.pool.freed_at == waits, "it would wake those who wait for pages, again and again"


def test_one_that_waits_is_let_in_when_what_it_needs_has_become_known():
    bench = Bench()
    bench.granted(1, tokens=SHARED, max_tokens=5)
    bench.submit(2, tokens=(*SHARED, *range(8)))
    assert bench.asks() == []
    bench.verdict(1, Kind.TRANSFERRED)
    assert bench.asks() == [ask(2)]


def test_what_is_generated_is_shared_as_far_as_it_has_kv():
    bench = Bench()
    bench.running(1, tokens=SHARED[:8], max_tokens=8)
    while bench.plan():
        bench.land(token=9)
    assert Ended(room(1), Reason.LENGTH) in bench.notes
    bench.submit(2, tokens=(*SHARED[:8], 7, *[9] * 7, 1))
    bench.asks()
    (granted,) = bench.outcome(ask(2))
    assert granted.first_page == 3, "the last of the 16 tokens has no KV"


@pytest.mark.parametrize("where", ["transferring", "in flight"])
def test_what_was_cut_off_is_shared_no_further_than_it_was_before(where: str):
    bench = Bench()
    if where == "transferring":
        bench.granted(1, tokens=SHARED)
        bench.abort(1)
        bench.verdict(1, Kind.TRANSFERRED)
        bench.verdict(1, Kind.QUIET)
    else:
        bench.running(1, tokens=SHARED, max_tokens=12)
        for _ in range(4):
            bench.runs()
        bench.plan()
        bench.abort(1)
        bench.land()
    bench.submit(2, tokens=(*SHARED, 7, 8, 8, 8, 8))
    bench.asks()
    (granted,) = bench.outcome(ask(2))
    assert granted.first_page == (0 if where == "transferring" else 3)


# the transfer


@pytest.mark.parametrize("token_first", [True, False])
def test_kv_and_first_token_are_both_needed_in_either_order(token_first: bool):
    bench = Bench()
    bench.granted(1)
    inputs = [lambda: bench.first(1), lambda: bench.verdict(1, Kind.TRANSFERRED)]
    one, other = inputs if token_first else reversed(inputs)
    assert one() == []
    assert bench.plan() == []
    assert other() == [Emitted(room(1), 0, 7)]
    assert [row.tokens for row in bench.plan()] == [(7,)]


def test_what_prefill_had_in_its_cache_is_told_by_decode_as_well():
    """Decode's token 0 may be the first that the router hears of, and the last of its answer may overtake prefill's."""
    bench = Bench()
    bench.granted(1)
    bench.verdict(1, Kind.TRANSFERRED)
    assert bench.role.on_first_token(FirstToken(room(1), 7, None, 16)) == [Emitted(room(1), 0, 7, 16)]


def test_a_second_first_token_or_verdict_says_nothing_new():
    bench = Bench()
    bench.running(1)
    assert bench.first(1, token=8) == []
    assert bench.verdict(1, Kind.TRANSFERRED) == []
    assert [row.tokens for row in bench.plan()] == [(7,)]


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


def test_a_peer_whose_word_does_not_come_is_cut_off_and_then_the_pages_are_free():
    bench = Bench(Limits(page_size=4, num_pages=8, context=64, quiesce_ms=100))
    bench.granted(1)
    bench.abort(1)
    assert bench.role.expire(50) == []
    assert bench.role.wake_ms() == 150
    assert bench.role.expire(150) == [CutOff("p0")]
    assert bench.pages() == (7, 0, 1), "nobody knows that it has been done"
    assert [(held.room, pages) for held, pages in bench.role.held()] == [(room(1), 1)]
    assert bench.verdict(1, Kind.FENCED) == [Forgotten(room(1))]
    assert (bench.pages(), bench.role.held(), bench.role.wake_ms()) == ((8, 0, 0), [], None)


def test_kv_that_is_not_what_was_sent_ends_its_request_by_name():
    bench = Bench()
    bench.granted(1)
    assert bench.verdict(1, Kind.CORRUPTED)[0] == Ended(room(1), Reason.KV_CHECKSUM)
    assert bench.verdict(1, Kind.CORRUPTED) == []
    assert bench.pages() == (7, 0, 1), "it may still be written to"


def test_a_request_whose_kv_has_landed_waits_for_nobodys_word():
    """Every write that there was has ended well."""
    bench = Bench()
    bench.granted(1)
    bench.verdict(1, Kind.TRANSFERRED)
    assert bench.abort(1)[-1] == Forgotten(room(1))
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


def test_kv_that_is_on_its_way_is_asked_about_until_the_request_runs():
    """Once it is here, the first token may still be lost."""
    bench = Bench()
    bench.submit(1)
    bench.granted(2)
    assert bench.role.polls() == {room(2): [Question.INTACT, Question.LANDED]}
    bench.verdict(2, Kind.TRANSFERRED)
    assert bench.role.polls() == {room(2): [Question.INTACT]}
    bench.role.on_first_token(FirstToken(room(2), 7))
    assert bench.role.polls() == {}


# running


def test_tokens_are_counted_until_the_end():
    bench = Bench()
    bench.running(1, max_tokens=3)
    bench.plan()
    assert bench.land(8) == [Emitted(room(1), 1, 8)]
    bench.plan()
    assert bench.land(9) == [
        Emitted(room(1), 2, 9),
        Ended(room(1), Reason.LENGTH),
        Forgotten(room(1)),
    ]
    assert bench.pages() == (8, 0, 0)


def test_a_stop_id_ends_it_early():
    bench = Bench()
    bench.running(1, max_tokens=20)
    bench.plan()
    assert Ended(room(1), Reason.STOP) in bench.land(0)


# aborts and deadlines


def test_an_abort_in_the_queue_frees_at_once_and_tells_prefill():
    bench = Bench()
    bench.submit(1)
    told = ToldPeer(room(1), "p0", Reason.CLIENT_GONE)
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE), told, Forgotten(room(1))]
    assert bench.asks() == []


@pytest.mark.parametrize("yes", [True, False])
def test_an_abort_during_the_vote_waits_for_its_outcome(yes: bool):
    bench = Bench()
    bench.submit(1)
    bench.asks()
    assert Ended(room(1), Reason.CLIENT_GONE) in bench.abort(1)
    assert bench.pages() == (7, 1, 0)
    assert bench.abort(1) == []
    assert bench.outcome(ask(1), yes) == [Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_an_abort_during_a_pause_leaves_nothing():
    bench = Bench()
    bench.submit(1)
    bench.asks()
    bench.outcome(ask(1), yes=False)
    assert Forgotten(room(1)) in bench.abort(1)
    assert bench.role.wake_ms() is None
    assert bench.role.lengths() == (0, 0, 0)


def test_a_forward_in_flight_keeps_the_pages_of_an_aborted_request():
    bench = Bench()
    bench.running(1)
    (row,) = bench.plan()
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE)]
    assert set(row.pages) <= set(bench.role.pool.held(room(1)))
    assert bench.role.next_slot(Slot(0), Flights(), frozenset()) == (0, False)
    assert bench.land() == [Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_a_running_request_with_nothing_in_flight_ends_in_the_same_tick():
    bench = Bench()
    bench.running(1)
    assert bench.abort(1) == [Ended(room(1), Reason.CLIENT_GONE), Forgotten(room(1))]
    assert bench.plan() == []


def test_a_room_that_is_not_here_is_only_forgotten():
    assert Bench().abort(1) == [Forgotten(room(1))]


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


# what is refused


def test_what_can_never_grow_to_its_end_is_refused_and_prefill_is_told():
    bench = Bench()
    told = ToldPeer(room(1), "p0", Reason.TOO_LARGE)
    assert bench.submit(1, prompt=30, max_tokens=4) == [Ended(room(1), Reason.TOO_LARGE), told, Forgotten(room(1))]
    assert bench.submit(2, prompt=30, max_tokens=3) == []


def test_the_slot_of_a_flying_tick_is_not_named():
    bench = Bench()
    bench.running(1)
    flights = Flights()
    flights.launch(Tick(3), Slot(0), bench.plan())
    assert bench.role.next_slot(Slot(0), flights, frozenset()) == (NO_SLOT, False)
    assert bench.role.next_slot(Slot(0), flights, frozenset({Tick(3)})) == (0, True)


def test_a_role_has_as_many_slots_as_it_is_told():
    role = DecodeRole(ROOMY, 3)
    assert [role.next_slot(Slot(after), Flights(), frozenset())[0] for after in range(3)] == [1, 2, 0]


# what looks back, and grammars

JSON = '{"type":"object"}'


def test_rows_know_all_before_if_they_look_back():
    bench = Bench()
    bench.running(1, prompt=4, generated=2, sampling=Sampling(presence_penalty=1.0))
    prompt = bench.role._requests[room(1)].work.prompt
    (row,) = bench.plan()
    assert (row.past, row.generated, row.grammar) == ((*prompt, *row.tokens), 3, "")
    bench.land(9)
    (row,) = bench.plan()
    assert (row.past[4:], row.generated) == ((row.past[4], 9), 4)


def test_nobody_else_carries_more_than_its_newest_token():
    bench = Bench()
    bench.running(1)
    (row,) = bench.plan()
    assert (row.past, row.generated, row.grammar) == ((), 0, "")


def test_a_request_gets_no_pages_before_its_grammar_is_compiled_and_holds_nobody_up():
    bench = Bench()
    assert bench.submit(1, grammar=JSON) == [Uncompiled(room(1), JSON)]
    bench.submit(2)
    assert bench.asks() == [ask(2)]
    assert bench.verdict(1, Kind.COMPILED) == []
    assert bench.asks() == [ask(1)]


def test_one_whose_grammar_came_late_has_its_own_place():
    bench = Bench(ROOMY)
    for number in (1, 2, 3):
        bench.submit(number, grammar=JSON)
    for number in (3, 1, 2):
        bench.verdict(number, Kind.COMPILED)
    assert bench.asks() == [ask(1), ask(2), ask(3)]


def test_a_bad_grammar_ends_its_request_on_both_sides():
    bench = Bench()
    bench.submit(1, grammar=JSON)
    told = ToldPeer(room(1), "p0", Reason.BAD_GRAMMAR)
    assert bench.verdict(1, Kind.BAD_GRAMMAR) == [Ended(room(1), Reason.BAD_GRAMMAR), told, Forgotten(room(1))]
    assert bench.pages() == (8, 0, 0)


def test_one_without_numbers_ends_alone_and_gives_its_pages_back():
    bench = Bench(ROOMY, slots=1)
    for number in (1, 2):
        bench.running(number)
    rows = bench.plan()
    assert len(rows) == 2
    assert bench.role.on_tokens(rows[0], ()) == [Ended(room(1), Reason.NOT_A_NUMBER), Forgotten(room(1))]
    assert bench.role.on_tokens(rows[1], (8,)) == [Emitted(room(2), 1, 8)]
    assert bench.plan()[0].room == room(2)


def test_one_that_ended_meanwhile_only_leaves_whatever_came_back():
    bench = Bench(ROOMY)
    bench.running(1)
    (row,) = bench.plan()
    bench.abort(1)
    assert bench.role.on_tokens(row, ()) == [Forgotten(room(1))]
