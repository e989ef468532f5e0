"""The replicated step: its fixed order, what it drops, and that equal frames give equal plans."""

import pytest

from prefill.role import PrefillRole
from tandem.core.config import Limits
from tandem.core.errors import Divergence, IllegalTransition
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Frame, Harvest, Kind, Outcome, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import Ask, Forgotten, Question, Row
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.scheduler import Scheduler
from tandem.core.slots import Flights

A, B = (Room(RequestId(number), 1) for number in (1, 2))
ROW = Row(A, (1,), 0, (), True, Sampling())
ASK = Ask(Question.PREALLOC, A, "p0")


def submit(room: Room) -> Submit:
    return Submit(Work(room, (1, 2, 3), 2, (), Sampling(), None), 1_000)


class Recorder:
    """A role that writes down what it is told, in order, knows room A, and once plans a row and asks a question."""

    kinds = tuple(Kind)

    def __init__(self) -> None:
        self.pool = PagePool(4, 4)
        self.calls: list[str] = []
        self.rows, self.asks = [ROW], [ASK]

    def knows(self, room: Room) -> bool:
        return room == A

    def __getattr__(self, name: str):
        def record(*_):
            self.calls.append(name)
            return {"admit": self.asks, "plan": self.rows, "lengths": ()}.get(name, [])

        return record


def test_the_order_of_a_step_is_fixed():
    role = Recorder()
    scheduler = Scheduler(role)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    role.calls.clear()
    role.rows, role.asks = [], []
    scheduler.step(
        Frame(
            Tick(1),
            Slot(0),
            5,
            arrivals=(submit(B), FirstToken(A, 1), Abort(B, Reason.CLIENT_GONE)),
            verdicts=(Verdict(A, Kind.QUIET),),
            harvests=(Harvest(Tick(0), ((A, (7,)),)),),
            ballots=(Outcome(Tick(1), 1),),
        )
    )
    told = ["on_tokens", "on_outcome", "on_verdict", "on_submit", "on_first_token", "on_abort", "expire"]
    assert role.calls == [*told, "admit", "plan", "lengths", "wake_ms"]


def test_what_concerns_an_absent_room_is_dropped():
    role = Recorder()
    arrivals, verdicts = (FirstToken(B, 1),), (Verdict(B, Kind.QUIET),)
    Scheduler(role).step(Frame(Tick(0), NO_SLOT, 0, arrivals, verdicts))
    assert role.calls == ["expire", "admit", "plan", "lengths", "wake_ms"]


def test_a_request_that_is_here_already_is_not_submitted_again():
    role = Recorder()
    Scheduler(role).step(Frame(Tick(0), NO_SLOT, 0, (submit(A),)))
    assert "on_submit" not in role.calls


@pytest.mark.parametrize("tick", [-1, 1, 7])
def test_only_the_next_frame_can_be_stepped(tick: int):
    with pytest.raises(Divergence):
        Scheduler(Recorder()).step(Frame(Tick(tick), NO_SLOT, 0))


def test_a_harvest_must_name_the_rooms_of_its_rows():
    scheduler = Scheduler(Recorder())
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    with pytest.raises(Divergence, match="other rooms"):
        scheduler.step(Frame(Tick(1), Slot(0), 0, harvests=(Harvest(Tick(0), ()),)))


def prefill() -> Scheduler:
    return Scheduler(PrefillRole(Limits(page_size=4, num_pages=8, context=32, max_rooms=1), 2))


FRAMES = [
    Frame(Tick(0), Slot(0), 0, (submit(A), submit(B))),
    Frame(Tick(1), Slot(0), 3, (Abort(A, Reason.CLIENT_GONE),)),
    Frame(Tick(2), Slot(0), 3, harvests=(Harvest(Tick(0), ((A, (7,)),)),)),
]


def test_equal_frames_give_equal_plans():
    one, other = prefill(), prefill()
    assert [one.step(frame) for frame in FRAMES] == [other.step(frame) for frame in FRAMES]


def test_a_difference_in_one_frame_shows_in_every_later_digest():
    one, other = prefill(), prefill()
    assert one.step(FRAMES[0]).digest != other.step(Frame(Tick(0), Slot(0), 1, FRAMES[0].arrivals)).digest
    for frame in FRAMES[1:]:
        assert one.step(frame).digest != other.step(frame).digest


def test_an_ended_room_is_ignored_from_the_next_arrival_on():
    """Both in one frame: refused as one too many, then submitted again, which must not be answered twice."""
    scheduler = prefill()
    plan = scheduler.step(Frame(Tick(0), Slot(0), 0, (submit(A), submit(B), submit(B))))
    assert [type(note).__name__ for note in plan.notes] == ["Opened", "Ended", "Forgotten", "Forgotten"]


def test_an_abort_that_overtakes_its_request_wins():
    scheduler = prefill()
    plan = scheduler.step(Frame(Tick(0), Slot(0), 0, (Abort(A, Reason.CLIENT_GONE), submit(A))))
    assert plan.notes == (Forgotten(A), Forgotten(A))
    assert not scheduler.role.knows(A)


# ticks in flight


def test_ticks_land_in_the_order_of_their_launch():
    flights = Flights()
    for tick in (3, 4):
        flights.launch(Tick(tick), Slot(tick), [ROW])
    with pytest.raises(IllegalTransition, match="oldest in flight is 3"):
        flights.land(Tick(4))
    assert flights.land(Tick(3)) == [ROW]
    assert len(flights) == 1


def test_a_slot_is_busy_until_its_tick_has_landed_or_is_among_the_returned():
    flights = Flights()
    flights.launch(Tick(3), Slot(0), [ROW])
    flights.launch(Tick(4), Slot(2), [ROW])
    assert flights.busy() == {0, 2}
    assert flights.busy(frozenset({Tick(3)})) == {2}
    flights.land(Tick(3))
    assert flights.busy() == {2}


def test_landing_what_never_flew_is_our_bug():
    with pytest.raises(IllegalTransition, match="oldest in flight is None"):
        Flights().land(Tick(0))
