"""`tandem trace`: what became of a request, as a waterfall, by way of a router's admin port."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tandem.control import EXIT_OK, EXIT_WRONG, get, part, show
from tandem.core.config import MAX_CHOICES
from tandem.runtime.history import Attempt, Summary, Transfer, Transfers
from tandem.waterfall import (
    COMMIT,
    FAULT,
    LANDED,
    LEGEND,
    MOMENT,
    POST,
    QUEUE,
    RUN,
    WAIT,
    WIRE,
    Drawn,
    duration,
    figure,
    waterfall,
)

WIDTH = 100
"""Columns, where there is no terminal that says how many."""
PER_WRITE = ("queue", "post", "wire", "commit")
"""Phases of a write. The others are of the whole request."""
STYLES = {
    WAIT: "yellow",
    RUN: "green",
    QUEUE: "dim",
    POST: "magenta",
    WIRE: "cyan",
    COMMIT: "blue",
    LANDED: "bold",
    MOMENT: "bold",
    FAULT: "bold red",
}
"""Of what is in a bar, where there are colours."""


def trace(request_id: str, admin_url: str, key: str = "", *, as_json: bool = False) -> int:
    """Draw it; 1 if a rank that may know more was not heard. Raises ConfigError with what the router says."""
    transfer = get(admin_url, f"transfers/{part('request_id', request_id)}", Transfer, key)
    for choice in others(transfer.id, request_id, admin_url, key):
        more = get(admin_url, f"transfers/{choice}", Transfer, key)
        transfer = Transfer(transfer.id, [*transfer.attempts, *more.attempts], transfer.silent | more.silent)
    if as_json:
        show(transfer)
        return EXIT_WRONG if transfer.silent else EXIT_OK
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in told(transfer, console.width if console.is_terminal else WIDTH):
        console.print(line)
    return EXIT_WRONG if transfer.silent else EXIT_OK


def others(request_id: str, given: str, admin_url: str, key: str) -> list[str]:
    """Ids of the other choices of an answer, as far as they are among the newest: theirs follow the answer's own.

    Who names an attempt, or a choice that is not the first, wants that one.
    """
    first = int(request_id, 16)
    if "." in given or first % MAX_CHOICES:
        return []
    newest = get(admin_url, "transfers", Transfers, key).transfers
    return sorted({one.id for one in newest if first < int(one.id, 16) < first + MAX_CHOICES})


def told(transfer: Transfer, width: int) -> Iterator[str | Text]:
    """All attempts, line by line."""
    for attempt in transfer.attempts:
        same = [one for one in transfer.attempts if one.summary.id == attempt.summary.id]
        yield headline(attempt.summary, len(same))
        yield ""
        yield from map(coloured, waterfall(attempt, width))
        yield ""
        yield from figures(attempt.summary)
        yield from remarks(attempt)
        yield ""
    yield from (f"{name} was not heard: {why}" for name, why in transfer.silent.items())
    yield LEGEND


def coloured(line: Drawn) -> Text:
    """A line of the picture."""
    bar = [("".join(run), STYLES.get(glyph, "")) for glyph, run in groupby(line.bar)]
    text = Text.assemble(f"{line.label} ", *bar, f" {line.note}")
    text.rstrip()
    return text


def headline(summary: Summary, attempts: int) -> str:
    """What it was, where, and how it stands."""
    which = f", attempt {summary.attempt}" if attempts > 1 or summary.attempt > 1 else ""
    groups = " > ".join(summary.groups.values())
    tokens = f"{summary.prompt_tokens} prompt tokens"
    tokens += f", {summary.tokens} generated" if summary.tokens is not None else ""
    reason = f" ({summary.reason})" if summary.reason else ""
    return f"request {summary.id}{which}: {groups}, {tokens}, {summary.state}{reason}"


def figures(summary: Summary) -> Iterator[str]:
    """The phases in milliseconds; those of a write are averages."""
    phases = {name: f"{name} {figure(int(value * 1000))}" for name, value in summary.phases_ms.items()}
    once = [said for name, said in phases.items() if name not in PER_WRITE]
    each = [said for name, said in phases.items() if name in PER_WRITE]
    if once:
        yield f"ms: {', '.join(once)}"
    if each:
        done, of = summary.layers
        yield f"ms of a write, on average: {', '.join(each)}"
        yield f"handed over: {done} of {of} layers, {summary.bytes} bytes"


def remarks(attempt: Attempt) -> Iterator[str]:
    """What has to be known to read the picture rightly."""
    for rank in attempt.ranks:
        if rank.shifted:
            way = "ahead of" if rank.offset_us > 0 else "behind"
            off, within = duration(abs(rank.offset_us)), duration(rank.within_us)
            yield f"{rank.rank}'s clock is {off} {way} the router's, within {within}; its times are corrected"
        if rank.dropped:
            yield f"{rank.rank} has dropped {rank.dropped} entries from the middle of a long story"
