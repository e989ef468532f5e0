"""What a rank leaves behind when its epoch ends. Not a log: it holds token ids, so the file is private."""

import os
import time
from pathlib import Path

import msgspec

from tandem.core.ids import Tick
from tandem.core.rank import Rank
from tandem.runtime.records import Ending, Heading, begin, framed, whole

KEPT = 64
"""Dumps in one directory; older ones go."""


def dump_directory() -> Path:
    """`$XDG_STATE_HOME/tandem/dumps`, or its default below the home directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tandem" / "dumps"


def dump(rank: Rank, heading: Heading, cause: str, directory: Path) -> Path:
    """Write the flight record and what the rank was doing; returns the file's path. Raises OSError."""
    path = directory / f"{heading.group.name}-{heading.rank}-{time.time_ns()}.dump"
    recorder = rank.recorder
    unfinished = recorder.unfinished()
    with whole(path) as file:
        begin(file, msgspec.structs.replace(heading, ending=ending(rank, cause)))
        file.write(framed(recorded.entry for recorded in recorder.since(Tick(-1))))
        if unfinished is not None:
            file.write(framed([unfinished]))
    for old in sorted(directory.glob("*.dump"), key=lambda one: one.stat().st_mtime_ns)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def ending(rank: Rank, cause: str) -> Ending:
    """What a rank is doing now."""
    scheduler = rank.scheduler
    return Ending(
        cause=cause,
        tick=scheduler.tick,
        awaiting=rank.awaiting(),
        queues=tuple(scheduler.role.lengths()),
        pages=scheduler.role.pool.counts(),
        in_hand=tuple(rank.in_hand()),
        facts=tuple(rank.facts.items()),
        stale=rank.stale,
    )
