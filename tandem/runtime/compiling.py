"""Grammars are compiled on a thread of their own: neither the tick loop nor the engine waits for one."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from tandem.core.effects import Compile
from tandem.core.errors import ConfigError
from tandem.core.events import Compiled

MOST_WAITING = 1024
"""Grammars that wait; one more is not compiled."""
PATIENCE_S = 30.0
"""From when a grammar is asked for until it must be there."""

log = logging.getLogger("tandem")


class Compiling:
    """Compiles in the order in which it is asked to, and tells of each how it went.

    `compile` raises ValueError or ConfigError for what it cannot compile; `fail` is given whatever else it raises.
    """

    def __init__(
        self,
        compile: Callable[[str], None],
        tell: Callable[[Compiled], None],
        fail: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compile = compile
        self._tell = tell
        self._fail = fail
        self._clock = clock
        self._waiting: queue.Queue[tuple[Compile, float] | None] = queue.Queue(MOST_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compile", daemon=True)
        self._thread.start()

    def put(self, job: Compile) -> None:
        """Queue a grammar; Compiled tells how it went. Never blocks."""
        try:
            self._waiting.put_nowait((job, self._clock() + PATIENCE_S))
        except queue.Full:
            self._tell(Compiled(job.room, ok=False))

    def close(self, timeout_s: float) -> None:
        """End after what is being compiled."""
        self._closed = True
        if self._waiting.empty():
            self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (asked := self._waiting.get()) is not None and not self._closed:
                self._tell(Compiled(asked[0].room, self._compiled(*asked)))
        except Exception as error:  # noqa: BLE001  whatever it was, the tick loop must hear of it
            self._fail(error)

    def _compiled(self, job: Compile, until_s: float) -> bool:
        """Too late is no better than never: whoever draws tokens would wait as long, and all others with it."""
        if self._clock() > until_s:
            return False
        try:
            self._compile(job.grammar)
        except (ValueError, ConfigError) as error:
            log.info("the grammar of %s cannot be compiled: %s", job.room, error)
            return False
        return self._clock() <= until_s
