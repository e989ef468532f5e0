"""`tandem top`: what status shows, again and again, with rates and the newest requests."""

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple, Self, TypeVar

import msgspec
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from tandem.control import EXIT_OK, get, show
from tandem.core.errors import ConfigError
from tandem.runtime.history import Summary, Transfers
from tandem.runtime.overview import ClusterView
from tandem.status import PATH, console_of, drawn

REQUESTS = 10
"""The newest ones that are shown."""
FIRST_LOOK_S = 0.5
"""Between the two looks that a rate is made of, with --once."""

T = TypeVar("T")


class Look(NamedTuple):
    """What there was to see, at this monotonic time."""

    at_s: float
    cluster: ClusterView
    transfers: Transfers


class Shown(msgspec.Struct):
    """What --json prints."""

    cluster: ClusterView
    ticks_per_s: dict[str, float]
    requests: list[Summary]


def top(admin_url: str, key: str, interval_s: float, *, once: bool, as_json: bool) -> int:
    """Until Ctrl-C, or once. Raises ConfigError, also when a router that was there is gone."""
    console = console_of()
    if as_json and not once:
        raise ConfigError("--json prints one object: give --once with it")
    if not once and not console.is_terminal:
        raise ConfigError("tandem top changes a terminal in place, and standard output is none: give --once")
    before = look(admin_url, key)
    time.sleep(min(interval_s, FIRST_LOOK_S))
    now = look(admin_url, key)
    if once:
        rates = rates_between(before, now)
        if as_json:
            show(Shown(now.cluster, rates, now.transfers.transfers[:REQUESTS]))
        else:
            console.print(screen(now, rates))
        return EXIT_OK

    def later() -> Look:
        time.sleep(interval_s)
        return look(admin_url, key)

    try:
        with CtrlC() as ctrl_c, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(now, rates_between(before, now)), refresh=True)
                before, now = now, ctrl_c.ends(later)
    except KeyboardInterrupt:
        return EXIT_OK


class CtrlC:
    """A context in which Ctrl-C ends what is waited for, at once or before the next wait, and nothing else.

    Elsewhere its exception could be lost: drawing takes generators apart, and Python drops what is raised in one of
    those.
    """

    def __init__(self) -> None:
        self._pressed = self._waits = False

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:  # who runs in the background may be told to ignore it
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def ends(self, wait: Callable[[], T]) -> T:
        """What is waited for. Raises KeyboardInterrupt, also when Ctrl-C was pressed before."""
        self._waits = True
        try:
            if self._pressed:
                raise KeyboardInterrupt
            return wait()
        finally:
            self._waits = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._pressed = True
        if self._waits:
            raise KeyboardInterrupt


def look(admin_url: str, key: str) -> Look:
    """Ask the router."""
    cluster, transfers = get(admin_url, PATH, ClusterView, key), get(admin_url, "transfers", Transfers, key)
    return Look(time.monotonic(), cluster, transfers)


def rates_between(before: Look, now: Look) -> dict[str, float]:
    """Ticks per second of each rank, by name such as p0.1; one that began another epoch has none."""
    were = ticks_of(before.cluster)
    seconds = max(1e-3, now.at_s - before.at_s)
    ticks = {name: (tick - were.get(name, tick)) / seconds for name, tick in ticks_of(now.cluster).items()}
    return {name: round(max(0.0, rate), 3) for name, rate in ticks.items()}


def ticks_of(cluster: ClusterView) -> dict[str, int]:
    """By rank."""
    return {f"{group.name}.{rank.rank}": rank.tick for group in cluster.groups for rank in group.ranks if rank.ready}


def screen(now: Look, rates: dict[str, float]) -> RenderableType:
    """All that is shown."""
    return Group(drawn(now.cluster, rates), "", requests(now.transfers.transfers[:REQUESTS]))


def requests(newest: list[Summary]) -> Table:
    """A line for each, with its phases in milliseconds."""
    table = Table(box=None, pad_edge=False)
    for name in ("request", "groups", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("prompt", "tokens", "alloc", "bootstrap", "compute", "exposed", "decode"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in newest:
        phases = (one.phases_ms.get(name) for name in ("alloc", "bootstrap", "compute", "exposed", "decode"))
        tokens = "-" if one.tokens is None else str(one.tokens)
        figures = ("-" if ms is None else f"{ms:.1f}" for ms in phases)
        state = f"{one.state} ({one.reason})" if one.reason else one.state
        table.add_row(
            f"{one.id}.{one.attempt}", ">".join(one.groups.values()), state, str(one.prompt_tokens), tokens, *figures
        )
    return table
