"""`tandem drain`: a group takes nothing new, and what it has is counted until it is finished."""

import time
from collections.abc import Iterator

import msgspec
from rich.console import Console

from tandem.control import EXIT_OK, EXIT_WRONG, get, part, show, tell
from tandem.runtime.overview import ClusterView, GroupView
from tandem.status import PATH

LOOK_S = 0.5
GONE = ("lost", "missing")


class Drained(msgspec.Struct):
    """How it ended: `cause` says why it is not drained."""

    group: str
    drained: bool
    left: int
    seconds: float
    cause: str = ""


def drain(group: str, admin_url: str, key: str, deadline_s: float, *, as_json: bool = False) -> int:
    """Wait for it; 1 if it has not finished within the deadline, or was lost. Raises ConfigError."""
    tell(admin_url, f"workers/{part('group', group)}/drain", key)
    console = Console(highlight=False, markup=False, stderr=as_json)
    began_s = time.monotonic()
    told = ""
    for view in looks(group, admin_url, key, began_s + deadline_s):
        end = end_of(group, view, time.monotonic() - began_s)
        if end is not None:
            break
        if (news := progress(group, view)) != told:
            console.print(told := news)
    else:
        left = rooms_of(view)
        end = Drained(group, False, left, deadline_s, f"{left} requests are left after {deadline_s:g} s")
    if as_json:
        show(end)
    elif end.drained:
        console.print(f"group {group} is drained, after {end.seconds:.1f} s; tandem control resume takes it back")
    else:
        console.print(f"group {group} is not drained: {end.cause}")
    return EXIT_OK if end.drained else EXIT_WRONG


def looks(group: str, admin_url: str, key: str, until_s: float) -> Iterator[GroupView | None]:
    """What the router knows of the group, again and again: once at least, and the last time at the deadline."""
    while True:
        late = time.monotonic() >= until_s
        yield get(admin_url, PATH, ClusterView, key).group(group)
        if late:
            return
        time.sleep(max(0.0, min(LOOK_S, until_s - time.monotonic())))


def end_of(group: str, view: GroupView | None, seconds: float) -> Drained | None:
    """If it is over."""
    if view is None or view.state in GONE:
        cause = "the router knows it no more" if view is None else f"it {view.cause}"
        return Drained(group, False, 0, round(seconds, 3), cause)
    if view.head.draining and not rooms_of(view):
        return Drained(group, True, 0, round(seconds, 3))
    return None


def rooms_of(view: GroupView | None) -> int:
    """Requests that rank 0 has something of; the router's own, where rank 0 says nothing."""
    if view is None:
        return 0
    return view.head.rooms if view.head.ready else view.open


def progress(group: str, view: GroupView | None) -> str:
    """What is left."""
    if view is None:
        return f"group {group}: not known"
    head = view.head
    return f"group {group} {view.state}: {rooms_of(view)} requests left, {head.running} running, {head.waiting} waiting"
