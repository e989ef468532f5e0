"""What an operator changes while a group serves: the values themselves, and what a step makes of an order."""

import pytest

from prefill.role import PrefillRole
from tandem.core.config import Limits
from tandem.core.controls import BUCKET, Controls
from tandem.core.ids import RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, Arrival, Control, Frame, Harvest, Kind, Knobs, Order, Submit, Verdict
from tandem.core.plan import CutOff, Ended, Forgotten, Opened, Plan, Row, Settled, ToldPeer
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.scheduler import Scheduler

LIMITS = Limits(page_size=4, num_pages=16, context=64, chunked_prefill_size=8, max_prefill_tokens=12)
A, B, C = (Room(RequestId(number), 1) for number in (1, 2, 3))
PAUSE, RESUME, FLUSH, DRAIN = map(Control, (Order.PAUSE, Order.RESUME, Order.FLUSH, Order.DRAIN))


def submit(room: Room, prompt: int = 6, peer: str | None = None, remaining_ms: int = 1_000) -> Submit:
    """All prompts begin alike."""
    return Submit(Work(room, tuple(range(1, 1 + prompt)), 9, (), Sampling(), peer), remaining_ms)


class Steps:
    """A prefill group's scheduler, stepped with one frame after the other."""

    def __init__(self) -> None:
        controls = Controls(LIMITS)
        self.role = PrefillRole(LIMITS, controls, window=4)
        self.scheduler = Scheduler(self.role, controls, LIMITS)

    def step(self, *arrivals: Arrival, now_ms: int = 0, **more) -> Plan:
        return self.scheduler.step(Frame(Tick(self.scheduler.tick + 1), Slot(0), now_ms, arrivals, **more))

    def harvest(self, plan: Plan, *arrivals: Arrival) -> Plan:
        """A tick comes back and, where it samples, brings token 7."""
        tokens = tuple((row.room, (7,)) for row in plan.rows if row.samples)
        return self.step(*arrivals, harvests=(Harvest(plan.tick, tokens),))


def spans(plan: Plan) -> list[tuple[Room, int, int]]:
    return [(row.room, row.start, row.end) for row in plan.rows]


# values


def test_without_a_chunk_table_all_chunks_are_alike():
    controls = Controls(LIMITS)
    assert {controls.chunk_tokens(position) for position in (0, 7, BUCKET, 100 * BUCKET)} == {8}


def test_a_chunk_is_as_long_as_the_bucket_in_which_it_begins_says():
    controls = Controls(LIMITS)
    controls.on_knobs(Knobs(chunk_table=(7, 5, 3)))
    starts = (0, BUCKET - 1, BUCKET, 2 * BUCKET - 1, 2 * BUCKET, 50 * BUCKET)
    assert [controls.chunk_tokens(position) for position in starts] == [7, 7, 5, 5, 3, 3]


def test_the_table_never_makes_a_chunk_longer():
    controls = Controls(LIMITS)
    controls.on_knobs(Knobs(chunk_table=(100, 4)))
    assert [controls.chunk_tokens(position) for position in (0, BUCKET)] == [8, 4]


def test_an_empty_table_takes_the_table_away():
    controls = Controls(LIMITS)
    controls.on_knobs(Knobs(chunk_table=(3,)))
    controls.on_knobs(Knobs(chunk_table=()))
    assert controls.chunk_tokens(0) == 8


def test_what_a_knob_does_not_name_stays():
    controls = Controls(LIMITS)
    controls.on_knobs(Knobs(max_prefill_tokens=5))
    controls.on_knobs(Knobs(chunked_prefill_size=3))
    controls.on_knobs(Knobs(chunk_table=(2,)))
    assert (controls.max_prefill_tokens, controls.chunked_prefill_size, controls.chunk_table) == (5, 3, (2,))


@pytest.mark.parametrize("order", Order)
def test_an_order_given_twice_is_given_once(order: Order):
    once, twice = Controls(LIMITS), Controls(LIMITS)
    for controls, times in ((once, 1), (twice, 2)):
        for _ in range(times):
            controls.on_control(Control(order))
    assert vars(once) == vars(twice)


# orders, in a step


def test_a_paused_group_starts_nothing_that_is_asked_for():
    steps = Steps()
    steps.step(PAUSE)
    plan = steps.step(submit(A))
    assert (plan.rows, plan.asks, plan.notes) == ((), (), (Opened(A, None, 6),))
    assert steps.role.pool.available == 16
    assert spans(steps.step(RESUME)) == [(A, 0, 6)]


def test_the_frame_that_pauses_starts_nothing_either():
    assert Steps().step(submit(A), PAUSE).rows == ()
    assert Steps().step(PAUSE, submit(A)).rows == ()


def test_what_has_begun_before_a_pause_comes_back_during_it():
    steps = Steps()
    flying = steps.step(submit(A, peer="d0"), verdicts=(Verdict(A, Kind.BOOTSTRAPPED),))
    assert flying.rows == (), "its verdict came before it did"
    flying = steps.step(verdicts=(Verdict(A, Kind.BOOTSTRAPPED),))
    assert spans(flying) == [(A, 0, 6)]
    steps.step(PAUSE)
    steps.harvest(flying)
    plan = steps.step(verdicts=(Verdict(A, Kind.QUIET),))
    assert plan.notes == (Settled(A, "d0"), Forgotten(A))
    assert steps.role.pool.available == 16


def test_aborts_and_deadlines_go_on_during_a_pause():
    steps = Steps()
    steps.step(PAUSE, submit(A), submit(B, remaining_ms=10))
    assert Ended(A, Reason.CLIENT_GONE) in steps.step(Abort(A, Reason.CLIENT_GONE)).notes
    assert steps.scheduler.wake_ms == 10
    assert Ended(B, Reason.DEADLINE) in steps.step(now_ms=10).notes


def test_a_draining_group_refuses_and_tells_the_peer():
    steps = Steps()
    plan = steps.step(DRAIN, submit(A, peer="d0"), submit(B))
    assert plan.notes == (
        Ended(A, Reason.DRAINING),
        ToldPeer(A, "d0", Reason.DRAINING),
        Settled(A, "d0"),
        Forgotten(A),
        Ended(B, Reason.DRAINING),
        Forgotten(B),
    )
    assert not steps.role.knows(A)
    assert steps.step(submit(A, peer="d0")).notes == (Forgotten(A),), "it is answered once"


def test_a_draining_group_finishes_what_is_here():
    steps = Steps()
    first = steps.step(submit(A, prompt=12))
    second = steps.step(DRAIN)
    assert spans(first) + spans(second) == [(A, 0, 8), (A, 8, 12)]
    steps.harvest(first)
    assert Ended(A, Reason.LENGTH) in steps.harvest(second).notes


def test_a_request_that_was_here_before_the_drain_is_not_refused_when_it_comes_again():
    steps = Steps()
    steps.step(submit(A))
    assert steps.step(DRAIN, submit(A)).notes == ()
    assert steps.role.knows(A)


def test_resume_ends_a_pause_and_a_drain():
    steps = Steps()
    steps.step(PAUSE, DRAIN)
    plan = steps.step(RESUME, submit(A))
    assert plan.notes == (Opened(A, None, 6),)
    assert spans(plan) == [(A, 0, 6)]


def cached(steps: Steps, room: Room) -> Row:
    """A request that has come and gone; its only row."""
    plan = steps.step(submit(room))
    (row,) = plan.rows
    steps.harvest(plan)
    return row


def test_a_flush_forgets_the_prefixes_that_nobody_uses():
    steps = Steps()
    cached(steps, A)
    assert cached(steps, B).start == 4
    steps.step(FLUSH)
    assert steps.role.pool.counts()["free"] == 16
    assert cached(steps, C).start == 0


def test_a_flush_takes_no_page_from_a_request_that_uses_it():
    steps = Steps()
    cached(steps, A)
    flying = steps.step(submit(B))
    assert flying.rows[0].start == 4
    plan = steps.step(FLUSH, submit(C))
    assert plan.rows[0].start == 0, "it must not find what has been flushed"
    assert set(flying.rows[0].pages).isdisjoint(plan.rows[0].pages)
    steps.harvest(flying)
    steps.harvest(plan)
    steps.role.pool.audit()
    assert steps.role.pool.available == 16


def test_knobs_hold_from_the_frame_that_brings_them():
    steps = Steps()
    assert spans(steps.step(submit(A, prompt=30))) == [(A, 0, 8)]
    assert spans(steps.step(Knobs(chunked_prefill_size=3))) == [(A, 8, 11)]
    plan = steps.step(submit(B, prompt=6), Knobs(max_prefill_tokens=4))
    assert spans(plan) == [(A, 11, 14), (B, 0, 1)]
    assert spans(steps.step(Knobs(chunk_table=(2,)))) == [(A, 14, 16), (B, 1, 3)]


@pytest.mark.parametrize("arrival", [*map(Control, Order), Knobs(5), Knobs(None, 5), Knobs(None, None, (5,))])
def test_an_order_that_one_rank_has_missed_shows_in_its_digest(arrival: Arrival):
    one, other = Steps(), Steps()
    assert one.step(arrival).digest != other.step().digest


def test_a_release_cuts_the_peer_off_at_once():
    assert Steps().step(Control(Order.RELEASE, "d0")).notes == (CutOff("d0"),)
