"""What invariants need to know of a rank's state, read once from the live objects."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from checking.frozen import Frozen, part
from checking.node import Node

from decode.intake import State
from decode.role import DecodeRole
from tandem.core.effects import BackUp, Restore
from tandem.core.ids import PageId, Room
from tandem.core.pages import PagePool
from tandem.core.plan import Plan, Row
from tandem.core.rank import Rank
from tandem.core.scheduler import Scheduler

MOVING = (State.RETRACTING, State.BACKING_UP, State.LEAVING, State.RETRACTED, State.RESUMING, State.DOOMED)
"""States of a request whose pages are copied to the host or back, or may have to be."""
NO_HOST = PagePool(0, 1)
"""Of a group that has no use for host memory."""
Pages = tuple[tuple[Room, frozenset[PageId]], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one rank in one state."""

    tick: int
    scheduler: Frozen
    held: dict[Room, frozenset[PageId]]
    hosted: dict[Room, frozenset[PageId]]  # pages of host memory
    launched: Pages  # of forwards that this stage has not computed yet
    copied: Pages  # of copies to host memory and back that wait for the engine
    saving: Pages  # of host memory: where the former of them go
    flying: Pages  # of ticks whose harvest has not been applied
    left: tuple[str, ...]  # what keeps this rank from being at rest
    computing: bool  # the engine has a step to do
    forward: bool  # and it is one of a forward
    begun: bool  # and not the first one
    samples: bool  # that forward yields tokens
    busy: bool  # something is launched, or waits to be
    moving: bool  # the engine may have to copy before forwards that are under way
    sessions: int  # rooms that the courier keeps anything for
    ended: frozenset[Room]  # rooms that have been here and have gone
    wake_ms: int | None
    unacked: bool


def summary(node: Node, frozen: Frozen, rooms: Iterable[Room]) -> Summary:
    """Of a live rank and its frozen form. Raises IllegalTransition when a page is in two places or in none."""
    scheduler = node.rank.scheduler
    pool = scheduler.role.pool
    pool.audit()
    flights = scheduler.flights._flights.values()
    host = _host(scheduler)
    plans = [job for job in node.engine if isinstance(job, Plan)]
    forward = bool(node.engine) and isinstance(node.engine[0], Plan)
    copies = [job for job in node.engine if not isinstance(job, Plan)]
    return Summary(
        int(part(frozen, Node, "rank", Rank, "scheduler", Scheduler, "tick")),
        part(frozen, Node, "rank", Rank, "scheduler"),
        {room: frozenset(pool.held(room)) for room in rooms},
        {room: frozenset(host.held(room)) for room in rooms},
        _pages(row for plan in plans for row in plan.rows),
        _pages(copies),
        tuple((job.room, frozenset(job.host_pages)) for job in copies if isinstance(job, BackUp)),
        _pages(row for _, rows in flights for row in rows),
        tuple(name for name, there in _left(node).items() if there),
        bool(node.engine),
        forward,
        bool(node.phase),
        forward and plans[0].samples,
        bool(node.engine or node.rank._stepped or node.rank._hidden),
        bool(copies) or _moving(scheduler),
        node.rank.courier.open_rooms(),
        frozenset(scheduler._ended._rooms),
        node.rank.wake_ms(),
        node.column._acked < node.column._seq,
    )


def in_ticks_of(frozen: Frozen, seen: Summary) -> Summary:
    """The same of the same rank, whose ticks are counted otherwise in this frozen form."""
    scheduler = part(frozen, Node, "rank", Rank, "scheduler")
    return replace(seen, tick=int(part(scheduler, Scheduler, "tick")), scheduler=scheduler)


def _pages(rows: Iterable[Row | BackUp | Restore]) -> Pages:
    return tuple((row.room, frozenset(row.pages)) for row in rows)


def _host(scheduler: Scheduler) -> PagePool:
    role = scheduler.role
    return role._held.host if isinstance(role, DecodeRole) else NO_HOST


def _moving(scheduler: Scheduler) -> bool:
    """Of two requests, nobody moves before all forwards are back that were stepped while both were running."""
    if not isinstance(scheduler.role, DecodeRole):
        return False
    requests = scheduler.role._requests.values()
    return len(requests) > 2 or any(request.state in MOVING for request in requests)


def _left(node: Node) -> dict[str, bool]:
    rank, scheduler, head = node.rank, node.rank.scheduler, node.rank._head
    left = {
        "requests": any(scheduler.role.lengths()),
        "sessions": rank.courier.open_rooms() > 0,
        "facts of the store": len(node.column) > 0 or (node.table is not None and len(node.table) > 0),
        "facts": bool(rank._facts),
        "pages": scheduler.role.pool.available != scheduler.role.pool.num_pages,
        "host pages": _host(scheduler).available != _host(scheduler).num_pages,
        "votes": len(scheduler.votes) > 0,
        "flights": len(scheduler.flights) > 0,
        "plans": bool(rank._stepped or rank._launched or rank._returns or rank._hidden or node.engine),
    }
    if head is not None:
        left["inputs"] = head._leader.waiting
        left["verdicts"] = bool(head._leader._issued)
        left["facts of the group"] = bool(head._facts)
        left["returns"] = bool(head._digests)
        left["log-probabilities"] = len(head.untold) > 0
    return left
