"""What must hold whenever a page is touched: the room it is touched for holds it, and shared ones are only read."""

from collections.abc import Iterable

from tandem.core.effects import BackUp, Post, Restore
from tandem.core.ids import PageId, Room
from tandem.core.pages import PagePool
from tandem.core.plan import Plan
from tandem.core.rank import Rank
from tandem.core.requests import pages_for


class StrayAccess(Exception):
    """A page was read or written for a room that does not hold it, or was written while others share it."""


def check_read(post: Post, sender: Rank) -> None:
    """A posted write reads pages that its room holds."""
    held = sender.scheduler.role.pool.held(post.room)
    _check(post.room, [source for source, _ in post.blocks], held, sender, "read by a write")


def check_written(post: Post, receiver: Rank) -> None:
    """It lands in pages that only its room uses."""
    writable = receiver.scheduler.role.pool.writable(post.room)
    _check(post.room, [destination for _, destination in post.blocks], writable, receiver, "written")


def check_forward(plan: Plan, rank: Rank) -> None:
    """A forward uses pages that its rows' rooms hold."""
    pool = rank.scheduler.role.pool
    for row in plan.rows:
        held = pool.held(row.room)
        if not set(held).issuperset(row.pages):
            _check(row.room, row.pages, held, rank, f"used by tick {plan.tick}")


def check_forward_writes(plan: Plan, rank: Rank) -> None:
    """What it writes into, nobody else uses. Asked when it begins: pages that are full may be shared from then on."""
    pool = rank.scheduler.role.pool
    for row in plan.rows:
        pages = row.pages[row.start // pool.page_size : pages_for(row.end, pool.page_size)]
        _check(row.room, pages, pool.writable(row.room), rank, f"written by tick {plan.tick}")


def check_copy(copy: BackUp | Restore, rank: Rank) -> None:
    """A copy to host memory reads pages that its room holds, into its own ones there; one back lands in its own pages.

    Who is copied back has given its pages on the host away already: copies take place in the order of their plans.
    """
    pool = rank.scheduler.role.pool
    allowed = pool.held(copy.room) if isinstance(copy, BackUp) else pool.writable(copy.room)
    _check(copy.room, copy.pages, allowed, rank, f"used by a {type(copy).__name__.lower()}")
    if isinstance(copy, BackUp):
        host: PagePool = vars(rank.scheduler.role)["_held"].host
        _check(copy.room, copy.host_pages, host.held(copy.room), rank, "written on the host by a backup")


def _check(room: Room, pages: Iterable[PageId], allowed: Iterable[PageId], rank: Rank, what: str) -> None:
    strays = set(pages).difference(allowed)
    if strays:
        where = f"{rank.place.group}.{rank.place.rank}"
        raise StrayAccess(f"pages {sorted(strays)} are {what} for {room}, but {where} has given them away")
