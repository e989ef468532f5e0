"""What operators say: who follows it, and what it must not touch."""

from mistakes.ranks import Patch

from decode.role import DecodeRole
from tandem.core.head import Head
from tandem.core.ids import NO_SLOT, Room
from tandem.core.inputs import Knobs
from tandem.core.requests import Reason
from tandem.core.scheduler import Scheduler


def requests_are_admitted_during_a_pause(patch: Patch) -> None:
    """A paused group computes nothing, but goes on giving pages to those that wait for them."""
    original = Scheduler._ask

    def ask(scheduler: Scheduler, decision, now_ms: int):
        if scheduler.controls.paused:
            decision = scheduler.role.decide(NO_SLOT, now_ms)
        return original(scheduler, decision, now_ms)

    patch.setattr(Scheduler, "_ask", ask)


def a_pause_holds_one_slot_only(patch: Patch) -> None:
    """A pause stops slot 0; whatever opens a tick of another slot lets it run on."""
    apply, step = Scheduler._apply, Scheduler.step

    def apply_and_run_on(scheduler: Scheduler, frame):
        notes = apply(scheduler, frame)
        controls = scheduler.controls
        controls.was_paused = controls.paused
        controls.paused = controls.paused and frame.slot <= 0
        return notes

    def step_and_pause_again(scheduler: Scheduler, frame):
        plan = step(scheduler, frame)
        scheduler.controls.paused = scheduler.controls.was_paused
        return plan

    patch.setattr(Scheduler, "_apply", apply_and_run_on)
    patch.setattr(Scheduler, "step", step_and_pause_again)


def a_drain_refuses_what_the_group_gave_up(patch: Patch) -> None:
    """A drained group takes a request that it has evicted itself for a new one."""
    patch.setattr(Scheduler, "_comes_back", lambda scheduler, room: False)


def a_drain_refuses_what_is_still_leaving(patch: Patch) -> None:
    """A drained group knows its earlier requests only once they have given all their pages back."""

    def has_gone(scheduler: Scheduler, room: Room):
        return Room(room.rid, room.attempt - 1) in scheduler._ended

    patch.setattr(Scheduler, "_comes_back", has_gone)


def a_drain_refuses_what_it_never_had(patch: Patch) -> None:
    """A drained group takes a later attempt for a new request when it has not heard of the earlier one."""

    def was_here(scheduler: Scheduler, room: Room):
        before = Room(room.rid, room.attempt - 1)
        return before in scheduler._ended or scheduler.role.knows(before)

    patch.setattr(Scheduler, "_comes_back", was_here)


def knobs_are_turned_on_arrival(patch: Patch) -> None:
    """Rank 0 turns a knob when it hears of it; the other ranks never do."""
    original = Head.gather

    def gather(head: Head, event, now_ms: int):
        if isinstance(event, Knobs):
            head._scheduler.controls.on_knobs(event)
        else:
            original(head, event, now_ms)

    patch.setattr(Head, "gather", gather)


def a_pause_stops_the_back_off(patch: Patch) -> None:
    """Back-offs end where requests are admitted, and a paused group admits nobody: its wake time stays in the past."""
    decide = DecodeRole.decide

    def wake_and_decide(role: DecodeRole, slot, now_ms: int):
        role._held.queue.wake(now_ms)
        return decide(role, slot, now_ms)

    def expire_only(role: DecodeRole, now_ms: int):
        late = role._held.deadlines.late(now_ms)
        return [note for room in late for note in role._end(role._requests[room], Reason.DEADLINE, told_by=None)]

    patch.setattr(DecodeRole, "decide", wake_and_decide)
    patch.setattr(DecodeRole, "expire", expire_only)
