"""`tandem`, with one rank that goes wrong once, when a file is there: for tests of how an epoch ends.

FAULT names the rank, what happens to it, and the file, such as `d0.1 hang /tmp/now`. The file goes when it bites.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import tandem.core.scheduler
from kvtransfer import checksums
from tandem.cli import main
from tandem.core.scheduler import Scheduler
from tandem.engine.fake import FakeEngine


def hang() -> NoReturn:
    """For ever."""
    while True:
        threading.Event().wait()


def fail() -> NoReturn:
    """As nobody had foreseen."""
    raise RuntimeError("it burnt")


def before(what: Callable[[], NoReturn], function: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """The function, but once, when the file is there, this happens instead."""

    def faulty(*given: Any) -> Any:
        if path.exists():
            path.unlink()
            what()
        return function(*given)

    return faulty


def diverging(function: Callable[..., int], path: Path) -> Callable[..., int]:
    """The digest, but once another one."""

    def faulty(*given: Any) -> int:
        if path.exists():
            path.unlink()
            return function(*given) ^ 1
        return function(*given)

    return faulty


def arm(fault: str, path: Path) -> None:
    """From now on it may bite."""
    match fault:
        case "hang":
            FakeEngine.run = before(hang, FakeEngine.run, path)  # type: ignore[method-assign]
        case "fail":
            FakeEngine.run = before(fail, FakeEngine.run, path)  # type: ignore[method-assign]
        case "bug":
            Scheduler.step = before(fail, Scheduler.step, path)  # type: ignore[method-assign]
        case "thread":
            checksums.intact = before(fail, checksums.intact, path)
        case "diverge":
            tandem.core.scheduler.advance = diverging(tandem.core.scheduler.advance, path)
        case _:
            raise ValueError(fault)


if __name__ == "__main__":
    name, fault, path = os.environ["FAULT"].split(" ", 2)
    group, _, rank = name.partition(".")
    if f"--group={group}" in sys.argv and f"--rank={rank}" in sys.argv:
        arm(fault, Path(path))
    main()
