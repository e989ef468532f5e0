"""What no decision of a rank can see is set back, so that paths can meet again: counters that are only compared."""

from checking.node import Node

from decode.role import DecodeRole
from prefill.role import PrefillRole
from tandem.core.deadlines import Deadlines
from tandem.core.recent import Recent


def set_back(node: Node) -> None:
    """Leave a rank as it is, but for numbers and orders that it never looks at."""
    scheduler = node.rank.scheduler
    _sort(scheduler._ended)
    match scheduler.role:
        case DecodeRole() as role:
            _of_decode(role)
        case PrefillRole() as role:
            _of_prefill(role)
    scheduler.role.pool.freed_at = 0


def _sort(recent: Recent) -> None:
    """The order matters to nobody before there are too many."""
    recent._rooms = dict.fromkeys(sorted(recent._rooms))


def _drop_dead(deadlines: Deadlines) -> None:
    """Entries that are left behind are skipped when they come up."""
    deadlines._heap = sorted((deadline_ms, room) for room, deadline_ms in deadlines._due.items())


def _of_decode(role: DecodeRole) -> None:
    """Requests are compared by their order, and the budget's number is that of the latest."""
    held, budget, refused = role._held, role._held.budget, role._admission._refused
    for request in role._requests.values():
        request.order -= budget._admitted
        request.blocked_at = 0 if request.blocked_at == role.pool.freed_at else -1
    if refused is not None:
        same = refused[1:] == (role.pool.freed_at, budget.changes, held.published)
        role._admission._refused = (refused[0], 0, 0, 0) if same else None
    budget._admitted = budget.changes = held.published = held.host.freed_at = 0
    _drop_dead(held.deadlines)


def _of_prefill(role: PrefillRole) -> None:
    """Who was refused waits until there is news: there is, or there is none."""
    refused = role._refused
    if refused is not None:
        role._refused = (refused[0], 0, 0) if refused[1:] == (role.pool.freed_at, role._published) else None
    role._published = 0
    _drop_dead(role._deadlines)
