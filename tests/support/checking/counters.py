"""What no decision of a rank can see is set back, so that paths can meet again: counters that are only compared."""

from checking.node import Node

from decode.role import DecodeRole
from prefill.role import PrefillRole
from tandem.core.deadlines import Deadlines
from tandem.core.recent import Recent
from tandem.core.turns import Turns


def set_back(node: Node) -> None:
    """Leave a rank as it is, but for numbers and orders that it never looks at."""
    scheduler = node.rank.scheduler
    _sort(scheduler._ended)
    match scheduler.role:
        case DecodeRole() as role:
            _of_decode(role)
        case PrefillRole() as role:
            _of_prefill(role)
    scheduler.role.pool.freed_at = scheduler.role.pool.published = 0


def _sort(recent: Recent) -> None:
    """The order matters to nobody before there are too many."""
    recent._rooms = dict.fromkeys(sorted(recent._rooms))


def _drop_dead(deadlines: Deadlines) -> None:
    """Entries that are left behind are skipped when they come up."""
    deadlines._heap = sorted((deadline_ms, room) for room, deadline_ms in deadlines._due.items())


def _of_decode(role: DecodeRole) -> None:
    """Requests are compared by their order, and the budget's number is that of the latest."""
    held, budget = role._held, role._held.budget
    for request in role._requests.values():
        request.order -= budget._admitted
        request.blocked_at = 0 if request.blocked_at == role.pool.freed_at else -1
    _of_turns(role._admission._turns, held.news())
    budget._admitted = budget.changes = held.host.freed_at = 0
    _drop_dead(held.deadlines)


def _of_prefill(role: PrefillRole) -> None:
    _of_turns(role._turns, role.pool.news)
    _drop_dead(role._deadlines)


def _of_turns(turns: Turns, news: tuple[int, ...]) -> None:
    """Who was refused waits until there is news: there is, or there is none."""
    if turns._refused is not None:
        room, known = turns._refused
        turns._refused = (room, (0,) * len(known)) if known == news else None
