"""The fences that a rank's tick loop has asked for: a thread per group, which tries until it is done."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue

from kvtransfer.edges import Edges
from tandem.core.events import Fenced

RETRY_S = 1.0
"""After a fence that failed."""
COMPLAIN_S = 10.0
"""How often the log says that one is still going on."""

log = logging.getLogger("tandem.kvtransfer")


class Fences:
    """All methods are for the tick loop's thread. `fenced` is called on another one, after each `ask` at least once.

    Pages that wait ask again and again. While a fence is stuck that must cost no more than one thread, so those that
    come meanwhile are one fence, which follows.
    """

    def __init__(
        self, edges: Edges, fenced: Callable[[Fenced], None], wake: Callable[[], None], timer_scale: float = 1.0
    ) -> None:
        self._edges = edges
        self._fenced = fenced
        self._wake = wake
        self._retry_s = RETRY_S * timer_scale
        self._asked: dict[str, None] = {}  # not begun
        self._begun: dict[str, None] = {}
        self._done: Counter[str] = Counter()
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._closed = threading.Event()
        self._next_complaint_s = 0.0

    def ask(self, group: str) -> None:
        """Fence what leads to a group. Nobody of it may be greeted from now on."""
        if not self.going_on(group):
            log.info("%s is being fenced off: pages held for it are free once that is done", group)
        self._asked[group] = None

    def begin(self) -> None:
        """Carry out what has been asked. What was open then has been told to be lost by now."""
        for group in [group for group in self._asked if group not in self._begun]:
            del self._asked[group]
            self._begun[group] = None
            threading.Thread(target=self._run, args=(group,), name=f"fence {group}", daemon=True).start()

    def going_on(self, group: str) -> bool:
        """Whether a fence has been asked for whose end `take` has not seen."""
        return group in self._begun or group in self._asked

    def groups(self) -> list[str]:
        """All whose fence is going on."""
        return list(self._begun | self._asked)

    def count(self, group: str) -> int:
        """How many have been done."""
        return self._done[group]

    def take(self) -> bool:
        """Look which fences are done: whether any is. Their Fenced is on its way."""
        before = self._done.total()
        while True:
            try:
                group = self._ended.get_nowait()
            except Empty:
                return self._done.total() > before
            del self._begun[group]
            self._done[group] += 1
            if not self.going_on(group):
                log.info("%s is fenced off", group)

    def tick(self, now_s: float) -> None:
        """Complain about those that take long."""
        groups = self.groups()
        if not groups:
            self._next_complaint_s = now_s + COMPLAIN_S
        elif now_s >= self._next_complaint_s:
            self._next_complaint_s = now_s + COMPLAIN_S
            log.warning("still waiting for the fence of %s: its pages stay where they are", ", ".join(groups))

    def close(self) -> None:
        """Stop trying. A fence that is going on is not waited for, and its end is not told."""
        self._closed.set()

    def _run(self, group: str) -> None:
        while not self._closed.is_set():
            try:
                self._edges.fence(group)
            except OSError as error:
                log.error("the fence of %s failed, it is tried again: %s", group, error)
                self._closed.wait(self._retry_s)
                continue
            self._fenced(Fenced(group))  # first: whoever is greeted later is greeted after this event
            self._ended.put(group)
            self._wake()
            return
