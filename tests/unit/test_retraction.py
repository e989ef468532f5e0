"""Requests that make room for older ones, and how they come back: every input in every state."""

import pytest
from decode_bench import Bench, ask, resume, retract, room

from tandem.core.config import Limits
from tandem.core.ids import Slot
from tandem.core.inputs import Kind
from tandem.core.plan import Emitted, Ended, Evicted, Forgotten, Note, Resumed, Retracted
from tandem.core.requests import Reason
from tandem.core.slots import Flights

GONE = Ended(room(2), Reason.CLIENT_GONE)


def full(host_pages: int = 8, slots: int = 1) -> Bench:
    """1 and 2 have two pages each of four, and will need a third; the last tokens of the second pages are in flight."""
    bench = Bench(Limits(page_size=4, num_pages=4, context=64, host_pages=host_pages, slot_rows=1), slots)
    for number in (1, 2):
        bench.running(number, max_tokens=9)
    for _ in range(3):
        for slot in range(slots):
            assert bench.runs(slot)
    assert bench.pages() == (0, 2, 0)
    return bench


def three_slots() -> Bench:
    """1, 2 and 3 are in the slots 0, 1 and 2; 1 and 2 need a page, all five are taken."""
    bench = Bench(Limits(page_size=4, num_pages=5, context=64, slot_rows=1), slots=3)
    for number in (1, 2):
        bench.running(number, max_tokens=9)
    bench.running(3, prompt=1)
    for _ in range(4):
        assert (bench.runs(0), bench.runs(1)) == ([1], [2])
    return bench


def retracting(host_pages: int = 8) -> Bench:
    """The vote on 2 is open."""
    bench = full(host_pages)
    bench.runs()
    assert bench.asks(0) == [retract(2)]
    return bench


def backing_up() -> Bench:
    bench = retracting()
    bench.outcome(retract(2))
    return bench


def retracted() -> Bench:
    bench = backing_up()
    bench.verdict(2, Kind.BACKED_UP)
    return bench


def resuming() -> Bench:
    """1 has ended, and the vote on 2 is open."""
    bench = retracted()
    bench.abort(1)
    assert bench.asks() == [resume(2)]
    return bench


def restoring() -> Bench:
    """2 is back, in a slot that has not run yet."""
    bench = resuming()
    bench.outcome(resume(2))
    bench.asks()
    return bench


def test_the_latest_makes_room_and_keeps_its_tokens():
    bench = retracting()
    assert bench.rows == [], "both need a page, there is none"
    assert bench.outcome(retract(2)) == [Retracted(room(2), (1, 3), (0, 1))]
    assert bench.host_pages() == 2


def test_pages_are_given_to_others_only_when_every_rank_has_its_copy():
    bench = backing_up()
    assert bench.runs() == []
    assert bench.verdict(2, Kind.BACKED_UP) == []
    assert bench.runs() == [1]
    assert bench.role.lengths() == (2, 1, 1)


def test_nobody_is_named_while_everyone_waits_for_pages():
    bench = backing_up()
    assert bench.role.next_slot(Slot(0), Flights(), frozenset()) == (0, False)
    bench.verdict(2, Kind.BACKED_UP)
    assert bench.role.next_slot(Slot(0), Flights(), frozenset()) == (0, True)


def test_one_lack_of_pages_is_answered_once():
    bench = retracting()
    assert bench.asks(0) == []
    bench.outcome(retract(2))
    assert bench.asks(0) == []


def test_one_lack_of_pages_is_answered_by_one_slot():
    bench = three_slots()
    bench.runs(2)
    assert bench.asks(0) == [retract(3)]
    assert bench.asks(0) == [], "2 is in another slot, and later than 1"


def test_a_victim_in_flight_is_taken_when_its_forward_is_back_and_does_not_run_again():
    bench = full(slots=2)
    first, second = (bench.role._requests[room(number)].slot for number in (1, 2))
    bench.runs(first)
    bench.plan(second)
    rows = bench.rows
    assert bench.asks(first) == [], "1 is blocked, and 2 is in flight"
    bench.rows = rows
    assert Emitted(room(2), 4, 8) in bench.land()
    assert bench.role.next_slot(first, Flights(), frozenset())[1] is False
    assert bench.asks(second) == [retract(2)]


def test_a_victim_that_ends_in_its_last_forward_gives_its_pages_back_at_once():
    bench = full(slots=2)
    first, second = (bench.role._requests[room(number)].slot for number in (1, 2))
    bench.runs(first)
    bench.plan(second)
    rows = bench.rows
    assert bench.asks(first) == []
    bench.rows = rows
    assert Ended(room(2), Reason.STOP) in bench.land(token=0)
    assert bench.asks(first) == []
    assert [row.room for row in bench.rows] == [room(1)]


def test_a_victim_in_flight_is_let_off_when_pages_have_come_back_meanwhile():
    bench = three_slots()
    flying = bench.plan(2)
    assert bench.asks(0) == [], "1 is blocked, and 3 is in flight"
    bench.abort(2)
    assert bench.runs(0) == [1]
    bench.rows = flying
    bench.land()
    assert bench.runs(2) == [3]


def test_without_room_on_the_host_the_victim_is_evicted_and_its_pages_are_there_at_once():
    bench = full(host_pages=1)
    bench.runs()
    assert bench.asks(0) == []
    assert bench.notes[-2:] == [Evicted(room(2)), Forgotten(room(2))]
    assert bench.runs() == [1]
    assert bench.role.lengths() == (1, 0, 1)


def test_after_a_no_the_victim_is_evicted():
    bench = retracting()
    assert bench.outcome(retract(2), yes=False) == [Evicted(room(2)), Forgotten(room(2))]
    assert bench.host_pages() == 0
    assert bench.runs() == [1]


# coming back


def test_it_comes_back_with_the_page_for_its_next_token_and_goes_on_where_it_was():
    bench = resuming()
    assert bench.outcome(resume(2)) == [Resumed(room(2), (0, 1), (1, 2))]
    assert bench.host_pages() == 0
    (row,) = bench.plan()
    assert (row.room, row.start, row.pages) == (room(2), 8, (1, 2, 3))
    assert Emitted(room(2), 5, 9) in bench.land(9)


def test_it_may_run_in_the_step_that_brings_it_back():
    bench = resuming()
    bench.outcome(resume(2))
    assert bench.runs() == [2]


def test_after_a_no_its_copy_is_lost():
    bench = resuming()
    assert bench.outcome(resume(2), yes=False) == [Evicted(room(2)), Forgotten(room(2))]
    assert (bench.pages(), bench.host_pages()) == ((4, 0, 0), 0)


def test_nobody_new_is_let_in_before_it():
    bench = backing_up()
    bench.submit(3, max_tokens=1, priority=100)
    bench.abort(1)
    assert bench.asks() == []
    bench.verdict(2, Kind.BACKED_UP)
    assert bench.asks() == [resume(2), ask(3)]


def test_it_does_not_come_back_while_the_oldest_could_need_its_pages():
    bench = retracted()
    assert bench.asks() == [], "two pages are there, it needs three, and 1 may need one more"


def test_it_is_the_last_in_the_order_of_admission_then():
    bench = Bench(Limits(page_size=4, num_pages=5, context=64, slot_rows=1))
    for number in (1, 2):
        bench.running(number, max_tokens=9)
    bench.granted(3, prompt=1)
    for _ in range(4):
        bench.runs()
    assert bench.asks(0) == [retract(2)], "3 is later, but prefill still writes into its pages"
    bench.outcome(retract(2))
    bench.verdict(2, Kind.BACKED_UP)
    bench.abort(1)
    assert bench.asks() == [resume(2)]
    assert list(bench.role._held.budget.latest_first()) == [room(2), room(3)]


def test_late_news_about_its_transfer_does_not_disturb_it():
    for bench in (retracting(), backing_up(), retracted(), resuming()):
        state = bench.role._requests[room(2)].state
        assert bench.verdict(2, Kind.TRANSFERRED) == []
        assert bench.first(2) == []
        assert bench.verdict(2, Kind.QUIET) == []
        assert bench.role._requests[room(2)].state is state


def test_a_backup_that_is_told_late_changes_nothing():
    bench = restoring()
    for nth in (1, 2):
        assert bench.verdict(2, Kind.BACKED_UP, nth) == []
    assert bench.runs() == [2]


# its client leaves


@pytest.mark.parametrize("yes", [True, False])
def test_an_end_during_the_retract_vote_waits_for_its_outcome(yes: bool):
    bench = retracting()
    assert bench.abort(2) == [GONE]
    assert bench.abort(2) == []
    assert bench.asks(0) == [], "its pages come back soon"
    assert bench.outcome(retract(2), yes) == [Forgotten(room(2))]
    assert (bench.host_pages(), bench.runs()) == (0, [1])


def test_an_end_during_the_copy_keeps_both_kinds_of_pages_until_it_is_done():
    bench = backing_up()
    assert bench.abort(2) == [GONE]
    assert (bench.pages()[0], bench.host_pages()) == (0, 2)
    assert bench.asks(0) == [], "its pages come back soon"
    assert bench.verdict(2, Kind.BACKED_UP) == [Forgotten(room(2))]
    assert (bench.host_pages(), bench.runs()) == (0, [1])


def test_an_end_while_it_waits_on_the_host_is_the_end():
    bench = retracted()
    assert bench.abort(2) == [GONE, Forgotten(room(2))]
    assert bench.host_pages() == 0
    bench.submit(3, prompt=1, max_tokens=1)
    assert bench.asks() == [ask(3)], "nobody waits before it any more"


@pytest.mark.parametrize("yes", [True, False])
def test_an_end_during_the_resume_vote_waits_for_its_outcome(yes: bool):
    bench = resuming()
    assert bench.abort(2) == [GONE]
    assert bench.outcome(resume(2), yes) == [Forgotten(room(2))]
    assert (bench.pages(), bench.host_pages()) == ((4, 0, 0), 0)


def test_an_end_before_it_has_run_again_keeps_its_pages_until_one_forward_has():
    """Only a forward behind the copy proves that no rank still copies into the pages."""
    bench = restoring()
    assert bench.abort(2) == [GONE]
    assert bench.pages() == (1, 3, 0)
    assert bench.role.next_slot(Slot(0), Flights(), frozenset()) == (0, True)
    assert [row.room for row in bench.plan()] == [room(2)]
    assert bench.role.next_slot(Slot(0), Flights(), frozenset()) == (0, False)
    assert bench.land() == [Forgotten(room(2))]
    assert bench.pages() == (4, 0, 0)


def test_an_end_in_that_forward_waits_for_it():
    bench = restoring()
    bench.plan()
    assert bench.abort(2) == [GONE]
    assert bench.land() == [Forgotten(room(2))]
    assert bench.pages() == (4, 0, 0)


@pytest.mark.parametrize("reach", [retracting, backing_up, retracted, resuming, restoring])
@pytest.mark.parametrize("how", ["deadline", "failed"])
def test_deadline_and_failure_end_it_wherever_it_is(reach, how: str):
    bench = reach()
    if how == "deadline":
        notes: list[Note] = bench.role.expire(1_000)
        assert Ended(room(2), Reason.DEADLINE) in notes
    else:
        assert Ended(room(2), Reason.TRANSFER_FAILED) in bench.verdict(2, Kind.FAILED)
        bench.role.expire(1_000)
    assert bench.role.wake_ms() is None
