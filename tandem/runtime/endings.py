"""What ends an epoch, and what ends a process; and who makes sure that an end does not take for ever."""

import logging
import os
import sys
import threading
import traceback

from tandem.core.ends import End, EndKind
from tandem.core.errors import Divergence

log = logging.getLogger("tandem")

END_S = 10.0
"""For all that an incarnation has under way: a forward, writes, copies. Multiplied by the timer scale."""
EXIT_UNUSABLE = 3


class EpochOver(Exception):
    """The group cannot go on, or shall not: the text is the cause, in the same words on every rank."""

    def __init__(self, cause: str, kind: EndKind = EndKind.OTHER) -> None:
        super().__init__(cause)
        self.kind = kind


class Stopped(Exception):
    """This process was told to end, and waits for nothing any more."""


class Unusable(Exception):
    """This process cannot be a rank any more: somebody else has its place, or its engine is broken."""

    def __init__(self, cause: str, kind: EndKind = EndKind.OTHER) -> None:
        super().__init__(cause)
        self.kind = kind


def end_of(error: BaseException, name: str) -> End:
    """What the others are told of an error on this rank."""
    match error:
        case EpochOver(kind=kind) | Unusable(kind=kind):
            return End(str(error), kind)
        case Stopped():
            return End(f"{name} was told to end", EndKind.LEFT)
        case Divergence():
            return End(f"the ranks diverged: {error}", EndKind.DIVERGED)
        case _:
            return End(f"a bug on {name}: {error!r}")


class Overdue:
    """Ends the process when an incarnation does not get to its end: who hangs cannot be used again.

    It may still hold the pages, so nobody else may use them either, and only a new process is sure not to.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        self._name = name
        self._patience_s = patience_s
        self._begun = False
        self._done = threading.Event()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """The end has begun. Called again, nothing happens. From any thread, but not from a signal's handler."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        threading.Thread(target=self._wait, name="overdue", daemon=True).start()

    def done(self) -> None:
        """It is over."""
        self._done.set()

    def _wait(self) -> None:
        if self._done.wait(self._patience_s):
            return
        log.critical("%s hangs after the end of its epoch, so its process ends:\n%s", self._name, where_threads_are())
        logging.shutdown()
        os._exit(EXIT_UNUSABLE)


def where_threads_are() -> str:
    """The stack of each thread of this process, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"thread {names.get(ident, '?')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(stacks)
