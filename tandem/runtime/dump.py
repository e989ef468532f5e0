"""What a rank leaves behind when its epoch ends. Not a log: it holds token ids, so the file is private."""

import os
import time
from pathlib import Path

import msgspec

from tandem.core.rank import Rank

KEPT = 64
"""Dumps in one directory; older ones go."""


def dump_directory() -> Path:
    """`$XDG_STATE_HOME/tandem/dumps`, or its default below the home directory."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tandem" / "dumps"


def dump(rank: Rank, cause: str, directory: Path) -> Path:
    """Write the flight record and the queues to a file of mode 0600; returns its path."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    place, scheduler = rank.place, rank.scheduler
    content = {
        "cause": cause,
        "group": place.group,
        "rank": place.rank,
        "size": place.size,
        "epoch": place.epoch,
        "tick": scheduler.tick,
        "awaiting": rank.awaiting(),
        "queues": scheduler.role.lengths(),
        "pages": scheduler.role.pool.counts(),
        "frames": [{"frame": frame, "digest": f"{digest:016x}"} for frame, digest in rank.flight_record],
    }
    path = directory / f"{place.group}-{place.rank}-{time.time_ns()}.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(content))
    for old in sorted(directory.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
