"""`tandem status`: a cluster at this moment, group by group and rank by rank."""

from collections.abc import Iterator

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.control import EXIT_OK, EXIT_WRONG, get, show
from tandem.runtime.overview import ClusterView, GroupView, RankView, RouterView

WIDTH = 120
"""Columns, where there is no terminal that says how many."""
PATH = "cluster"


def status(admin_url: str, key: str = "", *, as_json: bool = False) -> int:
    """Print it; 1 if anything is not as it should be. Raises ConfigError."""
    cluster = get(admin_url, PATH, ClusterView, key)
    if as_json:
        show({"faults": cluster.faults, **msgspec.to_builtins(cluster)})
    else:
        console_of().print(drawn(cluster))
    return EXIT_WRONG if cluster.faults else EXIT_OK


def console_of() -> Console:
    """As wide as the terminal, or as wide as tables need."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=WIDTH)


def drawn(cluster: ClusterView, rates: dict[str, float] | None = None) -> RenderableType:
    """The router, a table of the ranks, remarks and faults. `rates`: ticks per second, by rank such as p0.1."""
    told = [Text(remark, style="yellow") for remark in cluster.remarks]
    told += [Text(fault, style="bold red") for fault in cluster.faults]
    return Group(about(cluster.router), "", ranks(cluster, rates), *([""] if told else []), *told)


def about(router: RouterView) -> str:
    """The router in one line."""
    told = f"router {router.state}: {router.open} open, {router.queued} queued, {router.migrated} migrated"
    return f"{told}; registry read {router.registry_stale_s:.1f} s ago"


def ranks(cluster: ClusterView, rates: dict[str, float] | None) -> Table:
    """One line for each."""
    table = Table(box=None, pad_edge=False)
    for name in ("group", "role", "state", "rank", "engine", "epoch", "tick"):
        table.add_column(name, no_wrap=True, justify="right" if name == "tick" else "left")
    if rates is not None:
        table.add_column("ticks/s", justify="right", no_wrap=True)
    for name in ("running", "waiting", "free pages", "cached", "held"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in cluster.groups:
        for rank in group.ranks:
            table.add_row(*cells(group, rank, rates))
    return table


def cells(group: GroupView, rank: RankView, rates: dict[str, float] | None) -> Iterator[str | Text]:
    """Of one rank; what is the group's stands in the first line of it."""
    first = rank.rank == 0
    yield from (group.name if first else "", group.role if first else "")
    state = "paused" if group.usable and group.head.paused else group.state
    yield Text(state, style="green" if state == "usable" else "bold red") if first else ""
    yield from (str(rank.rank), rank.engine or "-")
    if not rank.ready:
        yield Text("not heard" if rank.silent else "not ready", style="bold red")
        return
    yield from (short(rank.epoch), str(rank.tick) if rank.tick >= 0 else "-")
    if rates is not None:
        yield f"{rates.get(f'{group.name}.{rank.rank}', 0.0):.0f}"
    pages = rank.pages
    yield from (str(rank.running), str(rank.waiting), f"{pages.get('free', 0)} of {pages.get('total', 0)}")
    yield from (str(pages.get("cached", 0)), str(rank.held_pages) if first else "")


def short(epoch: int) -> str:
    """Its last digits: enough to see whether two are the same, and whether one has changed."""
    return f"..{epoch % 10**6:06}"
