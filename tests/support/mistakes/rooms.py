"""Requests that are taken for each other."""

import msgspec
from mistakes.ranks import Patch

from consensus.store import Table
from tandem.core.ids import Room
from tandem.core.inputs import Abort
from tandem.core.recent import Recent
from tandem.core.scheduler import Scheduler


def room_reuse_without_attempt(patch: Patch) -> None:
    """What has ended is remembered by request: the next attempt is taken for something late."""
    patch.setattr(Recent, "__contains__", lambda recent, room: room.rid in [known.rid for known in recent._rooms])


def facts_are_kept_by_request(patch: Patch) -> None:
    """The store's table has one entry for all attempts: what the last one left says something about this one."""
    apply, combined = Table._apply, Table.combined

    def same_room(message):
        entries = tuple((Room(room.rid, 1), fact) for room, fact in message.entries)
        return msgspec.structs.replace(message, entries=entries)

    def apply_to_request(table: Table, message):
        rooms = [room for room, _ in message.entries]
        list(apply(table, same_room(message)))
        return rooms

    patch.setattr(Table, "_apply", apply_to_request)
    patch.setattr(Table, "combined", lambda table, room: combined(table, Room(room.rid, 1)))


def an_abort_ends_every_room_that_begins_alike(patch: Patch) -> None:
    """Rooms are looked up by the beginning of their name: r1 takes r10 with it."""
    original = Scheduler._on_arrival

    def on_arrival(scheduler: Scheduler, arrival, now_ms: int):
        notes = original(scheduler, arrival, now_ms)
        if isinstance(arrival, Abort):
            alike = [room for room in scheduler.role._requests if str(room.rid).startswith(str(arrival.room.rid))]
            notes += [n for room in alike for n in scheduler.role.on_abort(Abort(room, arrival.reason, arrival.peer))]
        return notes

    patch.setattr(Scheduler, "_on_arrival", on_arrival)


def ended_rooms_are_remembered_too_late(patch: Patch) -> None:
    """Two arrivals about one room in one frame: the second does not see what the first has done."""
    step, remember = Scheduler.step, Scheduler._remember

    def step_then_remember(scheduler: Scheduler, frame):
        plan = step(scheduler, frame)
        remember(scheduler, list(plan.notes))
        return plan

    patch.setattr(Scheduler, "_remember", lambda scheduler, notes: None)
    patch.setattr(Scheduler, "step", step_then_remember)
