"""The replicated step: its fixed order, what it drops, and that equal frames give equal plans."""

import pytest

from consensus.polls import POLL_MS
from prefill.role import PrefillRole
from tandem.assembly import build_scheduler
from tandem.core.config import Group, Limits, RoleName
from tandem.core.controls import Controls
from tandem.core.errors import Divergence, IllegalTransition
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot, Tick
from tandem.core.inputs import Abort, Control, FirstToken, Frame, Harvest, Kind, Order, Outcome, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import MAX_ASKS, Ask, Ended, Forgotten, Question, Row
from tandem.core.requests import Reason, Sampling, Work
from tandem.core.role import NOTHING, Decision
from tandem.core.scheduler import Scheduler
from tandem.core.slots import Flights

A, B = (Room(RequestId(number), 1) for number in (1, 2))
ROW = Row(A, (1,), 0, (), True, Sampling())
ASK = Ask(Question.PREALLOC, A, "p0")
PEERS = [(RoleName.PREFILL, "d0"), (RoleName.DECODE, "p0"), (RoleName.COLOCATED, None)]
ONE_ROOM = Limits(page_size=4, num_pages=8, context=32, max_rooms=1)
STORE, RING = Limits(), Limits(transfer_consensus="ring")


def submit(room: Room, peer: str | None = None) -> Submit:
    return Submit(Work(room, (1, 2, 3), 2, (), Sampling(), peer), 1_000)


class Recorder:
    """A role that writes down what it is told, in order, and knows room A. It decides and polls what it is given."""

    kinds = tuple(Kind)

    def __init__(self, decision: Decision = NOTHING, polls: dict[Room, list[Question]] | None = None) -> None:
        self.pool = PagePool(4, 4)
        self.calls: list[str] = []
        self.wakes: int | None = None
        self._answers = {"decide": decision, "polls": polls or {}, "lengths": (0, 0, 0)}

    def knows(self, room: Room) -> bool:
        return room == A

    def wake_ms(self) -> int | None:
        return self.wakes

    def decides(self, decision: Decision) -> None:
        self._answers["decide"] = decision

    def __getattr__(self, name: str):
        def record(*_):
            self.calls.append(name)
            return self._answers.get(name, [])

        return record


def scheduler_of(role: Recorder, limits: Limits = STORE) -> Scheduler:
    return Scheduler(role, Controls(limits), limits)


def test_the_order_of_a_step_is_fixed():
    role = Recorder(Decision([ROW], [ASK]))
    scheduler = scheduler_of(role)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    role.calls.clear()
    role.decides(NOTHING)
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
    told = ["on_tokens", "on_outcome", "on_verdict", "lengths", "on_submit", "on_first_token", "on_abort", "expire"]
    assert role.calls == [*told, "decide", "lengths"]


def test_what_concerns_an_absent_room_is_dropped():
    role = Recorder()
    arrivals, verdicts = (FirstToken(B, 1),), (Verdict(B, Kind.QUIET),)
    scheduler_of(role).step(Frame(Tick(0), NO_SLOT, 0, arrivals, verdicts))
    assert role.calls == ["expire", "decide", "lengths"]


def test_a_request_that_is_here_already_is_not_submitted_again():
    role = Recorder()
    scheduler_of(role).step(Frame(Tick(0), NO_SLOT, 0, (submit(A),)))
    assert "on_submit" not in role.calls


def test_what_a_decision_tells_comes_last_and_is_remembered():
    role = Recorder(Decision(notes=[Forgotten(B)]))
    scheduler = scheduler_of(role)
    assert scheduler.step(Frame(Tick(0), Slot(0), 0)).notes == (Forgotten(B),)
    role.decides(Decision(notes=[Ended(A, Reason.STOP)]))
    plan = scheduler.step(Frame(Tick(1), Slot(0), 0, (submit(B),)))
    assert plan.notes == (Forgotten(B), Ended(A, Reason.STOP))
    assert "on_submit" not in role.calls, "the room has ended in the step before"


@pytest.mark.parametrize("tick", [-1, 1, 7])
def test_only_the_next_frame_can_be_stepped(tick: int):
    with pytest.raises(Divergence):
        scheduler_of(Recorder()).step(Frame(Tick(tick), NO_SLOT, 0))


def test_a_harvest_must_name_the_rooms_of_its_rows():
    scheduler = scheduler_of(Recorder(Decision([ROW])))
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    with pytest.raises(Divergence, match="other rooms"):
        scheduler.step(Frame(Tick(1), Slot(0), 0, harvests=(Harvest(Tick(0), ()),)))


# transfer consensus by votes


BOTH = {A: [Question.INTACT, Question.QUIET]}


def polled(*questions: Question) -> tuple[Ask, ...]:
    return tuple(Ask(question, A) for question in questions)


def test_polls_are_asked_under_ring_consensus_only():
    by_store, by_ring = Recorder(polls=BOTH), Recorder(polls=BOTH)
    assert scheduler_of(by_store).step(Frame(Tick(0), Slot(0), 0)).asks == ()
    assert scheduler_of(by_ring, RING).step(Frame(Tick(0), Slot(0), 0)).asks == polled(*BOTH[A])
    assert "polls" not in by_store.calls


def test_the_outcome_of_a_poll_is_a_verdict():
    role = Recorder(polls=BOTH)
    scheduler = scheduler_of(role, RING)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    role.calls.clear()
    scheduler.step(Frame(Tick(1), Slot(0), 0, ballots=(Outcome(Tick(1), 0b10),)))
    assert role.calls[:3] == ["on_verdict", "on_verdict", "expire"], "one rank has failed, and all are quiet"


def test_a_poll_that_finds_nothing_changes_nothing():
    role = Recorder(polls=BOTH)
    scheduler = scheduler_of(role, RING)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    role.calls.clear()
    scheduler.step(Frame(Tick(1), Slot(0), 0, ballots=(Outcome(Tick(1), 0b01),)))
    assert "on_verdict" not in role.calls
    assert "on_outcome" not in role.calls


def test_a_poll_about_a_room_that_has_gone_says_nothing():
    role = Recorder(polls={B: [Question.QUIET]})
    scheduler = scheduler_of(role, RING)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    scheduler.step(Frame(Tick(1), Slot(0), 0, ballots=(Outcome(Tick(1), 1),)))
    assert "on_verdict" not in role.calls


def test_polls_take_what_is_left_of_a_ballot():
    questions = [Ask(Question.PREALLOC, Room(RequestId(number), 1), "p0") for number in range(MAX_ASKS - 1)]
    scheduler = scheduler_of(Recorder(Decision(asks=questions), BOTH), RING)
    assert scheduler.step(Frame(Tick(0), Slot(0), 0)).asks == tuple(questions)
    scheduler = scheduler_of(Recorder(Decision(asks=questions[1:]), BOTH), RING)
    assert scheduler.step(Frame(Tick(0), Slot(0), 0)).asks == (*questions[1:], *polled(*BOTH[A]))


def test_polls_and_verdicts_go_on_while_the_group_is_paused():
    role = Recorder(Decision([ROW], [ASK]), BOTH)
    scheduler = scheduler_of(role, RING)
    plan = scheduler.step(Frame(Tick(0), Slot(0), 0, (Control(Order.PAUSE),), (Verdict(A, Kind.QUIET),)))
    assert (plan.rows, plan.asks) == ((), polled(*BOTH[A]))
    assert role.calls == ["on_verdict", "expire", "polls", "lengths"]


@pytest.mark.parametrize(("roles", "expected"), [(None, POLL_MS), (1, 1), (10_000, POLL_MS)])
def test_it_wakes_for_the_role_and_for_the_next_poll(roles: int | None, expected: int):
    role = Recorder(polls={A: [Question.QUIET]})
    role.wakes = roles
    scheduler = scheduler_of(role, RING)
    scheduler.step(Frame(Tick(0), Slot(0), 0))
    assert scheduler.wake_ms == roles, "while a poll is out its outcome has to come first"
    scheduler.step(Frame(Tick(1), Slot(0), 0, ballots=(Outcome(Tick(1), 0),)))
    assert scheduler.wake_ms == expected


# the whole of it


def prefill() -> Scheduler:
    controls = Controls(ONE_ROOM)
    return Scheduler(PrefillRole(ONE_ROOM, controls, 2), controls, ONE_ROOM)


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


@pytest.mark.parametrize(("role", "peer"), PEERS)
def test_one_request_too_many_is_refused(role: RoleName, peer: str | None):
    scheduler = build_scheduler(Group(role, "g", (1,)), ONE_ROOM)
    plan = scheduler.step(Frame(Tick(0), NO_SLOT, 0, (submit(A, peer), submit(B, peer))))
    assert [note for note in plan.notes if isinstance(note, Ended | Forgotten)] == [
        Ended(B, Reason.QUEUE_FULL),
        Forgotten(B),
    ]


@pytest.mark.parametrize(("role", "peer"), PEERS)
def test_who_comes_back_is_let_in_though_the_group_is_full_or_drains(role: RoleName, peer: str | None):
    """Its client has a part of the answer. The group has given its first attempt up, and its place is taken."""
    scheduler = build_scheduler(Group(role, "g", (1,)), ONE_ROOM)
    back = Room(A.rid, 2)
    scheduler.step(Frame(Tick(0), NO_SLOT, 0, (submit(A, peer), Abort(A, Reason.PEER_ENDED), submit(B, peer))))
    plan = scheduler.step(
        Frame(Tick(1), NO_SLOT, 0, (submit(back, peer), Control(Order.DRAIN), submit(Room(B.rid, 2), peer)))
    )
    assert scheduler.role.knows(back)
    assert Ended(Room(B.rid, 2), Reason.QUEUE_FULL) in plan.notes, "but not without end"


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
