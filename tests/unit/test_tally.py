"""What a rank counts of what goes by: waits for the ring, votes, idle engines, and why rooms have failed."""

import pytest

from tandem.core.config import Group, RoleName
from tandem.core.ends import EndKind
from tandem.core.errors import Divergence
from tandem.core.events import Ran, Started
from tandem.core.ids import PageId, RankId, RequestId, Room, Slot, Tick
from tandem.core.plan import Ask, Ended, Granted, Plan, Question, Row
from tandem.core.requests import Reason, Sampling
from tandem.runtime.history import Outline, What
from tandem.runtime.tally import Tally

ROOM = Room(RequestId(1), 1)
ROW = Row(ROOM, (1,), 0, (PageId(0),), True, Sampling())
PREALLOC = Ask(Question.PREALLOC, ROOM, "p0")
BYTES_OF_PAGE = 100


def plan(tick: int, *rows: Row, asks: tuple[Ask, ...] = ()) -> Plan:
    return Plan(Tick(tick), Slot(0), rows, asks, (), 0)


def tally_of(rank: int, size: int = 2) -> tuple[Tally, list[int]]:
    """And the ticks in flight, which the test changes."""
    made, flights = Tally(Group(RoleName.DECODE, "d0", (1,) * size), RankId(rank)), list[int]()
    made.begin(flights, BYTES_OF_PAGE)
    return made, flights


def waits(tally: Tally, name: str = "ring_receive_wait_seconds", *labels: str) -> tuple[int, float]:
    """How many, and seconds in all."""
    histogram = tally.figures.histogram(name, *labels)
    return histogram.count, pytest.approx(histogram.sum)


def test_rank_0_waits_for_a_return_and_others_for_hidden_states():
    first, _ = tally_of(0)
    first.on_plan(0, plan(1, ROW))
    first.on_launch(10, Tick(1))
    first.on_return(2_000_010, Tick(1))
    assert waits(first) == (1, 2.0)
    second, _ = tally_of(1)
    second.on_plan(0, plan(1, ROW))
    second.on_launch(500_000, Tick(1))
    assert waits(second) == (1, 0.5)


def test_a_ring_of_one_waits_for_nobody_and_keeps_nothing():
    alone, _ = tally_of(0, size=1)
    for tick in range(100):
        alone.on_plan(0, plan(tick, ROW, asks=(PREALLOC,)))
        alone.on_launch(0, Tick(tick))
    assert waits(alone) == (0, 0.0)
    assert not alone._waiting
    assert not alone._asked


def test_a_vote_lasts_until_the_outcome_of_the_next_ticks_ballot():
    tally, _ = tally_of(1)
    tally.on_plan(0, plan(6, asks=(PREALLOC, Ask(Question.RETRACT, ROOM))))
    tally.on_outcome(100, Tick(6))
    tally.on_outcome(3_000_000, Tick(7))
    tally.on_outcome(9_000_000, Tick(7))
    assert waits(tally, "vote_wait_seconds", "prealloc") == (1, 3.0)
    assert waits(tally, "vote_wait_seconds", "retract") == (1, 3.0)


def test_an_engine_that_stands_still_counts_only_while_ticks_are_in_flight():
    tally, flights = tally_of(1)
    flights.append(1)
    tally.on_engine(0, Started(Tick(1)))
    tally.on_engine(1_000_000, Ran(Tick(1), ()))
    assert waits(tally, "tick_duration_seconds") == (1, 1.0)
    tally.on_engine(1_250_000, Started(Tick(2)))
    assert tally.bubble_us == 250_000
    tally.on_engine(2_000_000, Ran(Tick(2), ()))
    flights.clear()
    tally.on_plan(2_100_000, plan(3))
    assert tally.bubble_us == 350_000, "the last return came then"
    tally.on_engine(60_000_000, Started(Tick(4)))
    assert tally.bubble_us == 350_000, "nobody asked for anything in between"


@pytest.mark.parametrize(
    ("state", "where"), [(What.SUBMITTED, "queue"), (What.COMPUTING, "prefill"), (What.DECODING, "decode")]
)
def test_an_abort_is_counted_by_how_far_it_had_come(state: What, where: str):
    tally, _ = tally_of(0)
    tally.on_ended(Ended(ROOM, Reason.CLIENT_GONE), Outline("", 1, state=state), "")
    tally.on_ended(Ended(ROOM, Reason.LENGTH), Outline("", 1, state=state), "")
    assert tally.figures.counters == {("aborts_total", (where,)): 1}


@pytest.mark.parametrize(
    ("reason", "failure", "told"),
    [
        (Reason.TRANSFER_FAILED, "write_unsettled", "write_unsettled"),
        (Reason.TRANSFER_FAILED, "", "elsewhere"),
        (Reason.KV_CHECKSUM, "", "checksum"),
    ],
)
def test_a_failed_hand_over_is_counted_by_what_this_rank_has_seen(reason: Reason, failure: str, told: str):
    tally, _ = tally_of(0)
    tally.on_ended(Ended(ROOM, reason), Outline("", 1, state=What.GRANTED), failure)
    assert tally.figures.counters["kv_transfer_failures_total", (told,)] == 1


def test_what_decode_has_cached_is_saved_and_what_compute_hides_is_not_exposed():
    tally, _ = tally_of(0)
    room = Outline("", 1, marks={What.SUBMITTED: 0, What.FIRST_TOKEN: 3_000_000, What.TRANSFERRED: 2_000_000})
    tally.on_granted(1_000_000, room, Granted(ROOM, "p0", 8, 5, (PageId(9),)))
    tally.on_joined(4_000_000, room)
    room.marks[What.TRANSFERRED] = 3_500_000
    tally.on_joined(4_000_000, room)
    assert tally.figures.counters["kv_saved_bytes_total", ()] == 5 * BYTES_OF_PAGE
    assert waits(tally, "kv_transfer_duration_seconds", "alloc") == (1, 1.0)
    assert waits(tally, "kv_exposed_seconds") == (2, 0.5)


def test_counts_go_on_over_epochs_and_what_waited_does_not():
    tally, _ = tally_of(1)
    tally.on_plan(0, plan(1, ROW))
    tally.end(EndKind.DIVERGED, Divergence("frame of tick 7 after tick 5"))
    tally.begin([], BYTES_OF_PAGE)
    tally.on_launch(5_000_000, Tick(1))
    tally.on_plan(0, plan(0))
    assert tally.ticks == 2
    assert waits(tally) == (0, 0.0)
    assert tally.figures.counters == {("epoch_fences_total", ("diverged",)): 1, ("divergence_total", ()): 1}
