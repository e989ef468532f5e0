"""What must hold whenever somebody touches a page: on every rank, it is held by the room it is touched for."""

from collections.abc import Iterable, Sequence

from tandem.core.effects import Post
from tandem.core.ids import PageId, Room, Tick
from tandem.core.plan import Plan
from tandem.core.rank import Rank


class StrayAccess(Exception):
    """A page was read or written for a room that does not hold it any more."""


def check_write(post: Post, since: Tick, senders: Iterable[Rank], receivers: Sequence[Rank]) -> None:
    """A posted write reads pages of its room and lands in pages of its room, from post (in tick `since`) to end.

    Every receiver has granted before anything is posted, so even the rank that lags most knows whose pages they are.
    """
    _check(post.room, {source for source, _ in post.blocks}, _stepped(senders, since), "read by a write")
    _check(post.room, {destination for _, destination in post.blocks}, receivers, "written")


def check_forward(plan: Plan, ranks: Sequence[Rank]) -> None:
    """A forward reads and writes pages of its own rows, also on ranks that have stepped further."""
    for row in plan.rows:
        _check(row.room, set(row.pages), _stepped(ranks, plan.tick), f"used by tick {plan.tick}")


def _stepped(ranks: Iterable[Rank], tick: Tick) -> list[Rank]:
    """Those that cannot be without the allocation only because they lag."""
    return [rank for rank in ranks if rank.scheduler.tick >= tick]


def _check(room: Room, pages: set[PageId], ranks: Sequence[Rank], what: str) -> None:
    for rank in ranks:
        strays = pages.difference(rank.scheduler.role.pool.held(room))
        if strays:
            where = f"{rank.place.group} {rank.place.rank}"
            raise StrayAccess(f"pages {sorted(strays)} are {what} for {room}, but {where} has given them away")
