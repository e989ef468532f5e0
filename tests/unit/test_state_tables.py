"""The state tables: every pair of state and input, legal and illegal, and what each table promises as a whole."""

import enum
from itertools import product
from typing import Any, NamedTuple

import pytest

from decode import intake
from kvtransfer import session
from prefill import handoff
from tandem.core.errors import IllegalTransition
from tandem.core.ids import RequestId, Room
from tandem.core.queue import Place
from tandem.core.requests import Sampling, Work

ROOM = Room(RequestId(1), 1)
WORK = Work(ROOM, (1, 2, 3), 4, (), Sampling(), "peer")


class Table(NamedTuple):
    """One state machine: `legal` is its diagram, written out by hand once more."""

    next: dict[Any, Any]
    states: type[enum.Enum]
    inputs: type[enum.Enum]
    start: enum.Enum
    legal: str
    machine: Any

    def edges(self) -> dict[tuple[enum.Enum, enum.Enum], enum.Enum]:
        """The diagram's lines: `STATE INPUT STATE`."""
        lines = [line.split() for line in self.legal.strip().splitlines()]
        return {(self.states[one], self.inputs[what]): self.states[other] for one, what, other in lines}


HANDOFF = Table(
    handoff.NEXT,
    handoff.State,
    handoff.Input,
    handoff.State.COMPILING,
    """
    COMPILING     COMPILED     BOOTSTRAPPING
    COMPILING     BOOTSTRAPPED GRANTED
    COMPILING     ENDED        GONE
    GRANTED       COMPILED     WAITING
    GRANTED       ENDED        GONE
    BOOTSTRAPPING BOOTSTRAPPED WAITING
    BOOTSTRAPPING ENDED        GONE
    WAITING       ADMITTED     RUNNING
    WAITING       ENDED        GONE
    RUNNING       SAMPLED      SENDING
    RUNNING       FINISHED     DRAINING
    RUNNING       ENDED        DRAINING
    SENDING       ENDED        DRAINING
    SENDING       QUIET        GONE
    DRAINING      QUIET        GONE
    """,
    lambda state: handoff.Handoff(WORK, Place(0, 1), state),
)
INTAKE = Table(
    intake.NEXT,
    intake.State,
    intake.Input,
    intake.State.COMPILING,
    """
    COMPILING    COMPILED        QUEUED
    COMPILING    ENDED           GONE
    QUEUED       ALLOCATED       ASKING
    QUEUED       ENDED           GONE
    ASKING       GRANTED         TRANSFERRING
    ASKING       REFUSED         QUEUED
    ASKING       ENDED           DOOMED
    DOOMED       GRANTED         GONE
    DOOMED       REFUSED         GONE
    TRANSFERRING JOINED          RUNNING
    TRANSFERRING ENDED           QUARANTINED
    QUARANTINED  QUIET           GONE
    RUNNING      ENDED           GONE
    RUNNING      ENDED_IN_FLIGHT FINISHING
    RUNNING      CHOSEN          RETRACTING
    RUNNING      EVICTED         GONE
    FINISHING    HARVESTED       GONE
    RETRACTING   GRANTED         BACKING_UP
    RETRACTING   REFUSED         GONE
    RETRACTING   ENDED           DOOMED
    BACKING_UP   BACKED_UP       RETRACTED
    BACKING_UP   ENDED           LEAVING
    LEAVING      BACKED_UP       GONE
    RETRACTED    ALLOCATED       RESUMING
    RETRACTED    ENDED           GONE
    RESUMING     GRANTED         RESTORING
    RESUMING     REFUSED         GONE
    RESUMING     ENDED           DOOMED
    RESTORING    HARVESTED       RUNNING
    RESTORING    ENDED           FINISHING
    RESTORING    ENDED_IN_FLIGHT FINISHING
    """,
    lambda state: intake.Intake(WORK, Place(0, 1), state),
)
SENDING = Table(
    session.SEND_NEXT,
    session.SendState,
    session.SendInput,
    session.SendState.BOOTSTRAPPING,
    """
    BOOTSTRAPPING GRANTED  READY
    READY         LAUNCHED SENDING
    READY         STOPPED  STOPPED
    SENDING       LAUNCHED SENDING
    SENDING       STOPPED  STOPPED
    SENDING       DRAINED  QUIET
    STOPPED       DRAINED  QUIET
    QUIET         STOPPED  QUIET
    """,
    lambda state: session.SendSession(ROOM, state=state),
)
RECEIVING = Table(
    session.RECEIVE_NEXT,
    session.ReceiveState,
    session.ReceiveInput,
    session.ReceiveState.RESERVED,
    """
    RESERVED GRANTED   OPEN
    OPEN     COVERED   COMPLETE
    COMPLETE RETRACTED COPYING
    COPYING  BACKED_UP SAVED
    SAVED    RESUMED   COMPLETE
    """,
    lambda state: session.ReceiveSession(ROOM, "p0", state),
)
TABLES = {"prefill.handoff": HANDOFF, "decode.intake": INTAKE, "sending": SENDING, "receiving": RECEIVING}
PAIRS = [
    pytest.param(table, state, happened, id=f"{name}-{state.name}-{happened.name}")
    for name, table in TABLES.items()
    for state, happened in product(table.states, table.inputs)
]
EACH = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())


@pytest.mark.parametrize(("table", "state", "happened"), PAIRS)
def test_every_pair_moves_on_or_raises(table: Table, state: enum.Enum, happened: enum.Enum):
    machine = table.machine(state)
    expected = table.edges().get((state, happened))
    if expected is not None:
        machine.move(happened)
        assert machine.state is expected
        return
    with pytest.raises(IllegalTransition) as raised:
        machine.move(happened)
    assert str(ROOM) in str(raised.value)
    assert happened.value in str(raised.value)
    assert machine.state is state


@EACH
def test_every_state_can_be_reached(table: Table):
    reached, new = {table.start}, {table.start}
    while new:
        new = {to for (state, _), to in table.next.items() if state in new} - reached
        reached |= new
    assert reached == set(table.states)


@EACH
def test_every_input_is_used(table: Table):
    assert {happened for _, happened in table.next} == set(table.inputs)


@pytest.mark.parametrize("table", [HANDOFF, INTAKE], ids=["prefill.handoff", "decode.intake"])
def test_every_request_can_leave(table: Table):
    """From every state a path leads to GONE, and nothing leads out of it."""
    leaving = {table.states["GONE"]}
    for _ in table.states:
        leaving |= {state for (state, _), to in table.next.items() if to in leaving}
    assert leaving == set(table.states)
    assert not [pair for pair in table.next if pair[0] is table.states["GONE"]]


def test_a_request_can_be_ended_wherever_it_is_not_over():
    for state in intake.State:
        ended = (state, intake.Input.ENDED) in intake.NEXT
        assert ended == (state not in (*intake.OVER, intake.State.GONE)), state
    for state in handoff.State:
        ended = (state, handoff.Input.ENDED) in handoff.NEXT
        assert ended == (state not in (handoff.State.DRAINING, handoff.State.GONE)), state


def test_pages_that_a_writer_knows_are_left_only_by_quiet():
    out = [happened for (state, happened) in intake.NEXT if state is intake.State.QUARANTINED]
    assert out == [intake.Input.QUIET]


def test_pages_that_are_being_copied_are_left_only_by_the_end_of_the_copy():
    copying = (intake.State.BACKING_UP, intake.State.LEAVING)
    out = {happened: to for (state, happened), to in intake.NEXT.items() if state in copying and to not in copying}
    assert list(out) == [intake.Input.BACKED_UP]


def test_pages_that_are_being_copied_back_are_left_only_by_a_forward():
    back = (intake.State.RESTORING, intake.State.FINISHING)
    out = [happened for (state, happened), to in intake.NEXT.items() if state in back and to not in back]
    assert set(out) == {intake.Input.HARVESTED}


def send_session(state: session.SendState, **fields: Any) -> session.SendSession:
    return session.SendSession(ROOM, state=state, **fields)


def test_a_sender_is_drained_when_nothing_is_under_way_and_nothing_will_be():
    sending, stopped = session.SendState.SENDING, session.SendState.STOPPED
    assert send_session(stopped).drained
    assert send_session(sending, whole=True).drained
    assert not send_session(sending).drained
    assert not send_session(stopped, posted=1).drained
    assert not send_session(sending, whole=True, unfinished={4: None}).drained
    assert not send_session(session.SendState.READY).drained
    assert not send_session(session.SendState.QUIET).drained
