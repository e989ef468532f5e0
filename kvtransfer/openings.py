"""The endpoints that peer groups write to, made in threads of their own: a transport takes a moment to start."""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from kvtransfer.edges import Edges
from tandem.core.errors import ConfigError

RETRY_S = 5.0
"""After a transport that could not be made."""

log = logging.getLogger("tandem.kvtransfer")


class _Opened(NamedTuple):
    group: str
    turn: int
    endpoint: str
    failure: str


class Openings:
    """All methods are for the tick loop's thread. `wake` ends its sleep."""

    def __init__(self, edges: Edges, wake: Callable[[], None], timer_scale: float = 1.0) -> None:
        self._edges = edges
        self._wake = wake
        self._retry_s = RETRY_S * timer_scale
        self._endpoints: dict[str, str] = {}
        self._turns: dict[str, int] = {}  # raised when an endpoint is forgotten: what was begun before is void
        self._again_s: dict[str, float] = {}  # when the next try is due; none while one is going on
        self._opened: SimpleQueue[_Opened] = SimpleQueue()
        self.failures: dict[str, str] = {}

    def endpoint(self, group: str, now_s: float) -> str | None:
        """Where the group writes to. None if that is not known yet; it is on its way then."""
        if group not in self._endpoints and now_s >= self._again_s.get(group, now_s):
            self._again_s[group] = float("inf")
            turn = self._turns.setdefault(group, 0)
            threading.Thread(target=self._open, args=(group, turn), name=f"open {group}", daemon=True).start()
        return self._endpoints.get(group)

    def forget(self, group: str) -> None:
        """The group's transport is being ended."""
        self._turns[group] = self._turns.get(group, 0) + 1
        self._endpoints.pop(group, None)
        self._again_s.pop(group, None)

    def take(self, now_s: float) -> bool:
        """Look which transports are there now: whether any is new."""
        before = len(self._endpoints)
        while True:
            try:
                opened = self._opened.get_nowait()
            except Empty:
                return len(self._endpoints) > before
            if opened.turn != self._turns[opened.group]:
                continue
            if opened.failure:
                log.error("no transport for %s: %s", opened.group, opened.failure)
                self.failures[opened.group] = opened.failure
                self._again_s[opened.group] = now_s + self._retry_s
            else:
                self._endpoints[opened.group] = opened.endpoint
                self.failures.pop(opened.group, None)

    def _open(self, group: str, turn: int) -> None:
        try:
            opened = _Opened(group, turn, self._edges.open(group).endpoint, "")
        except (OSError, ConfigError) as error:
            opened = _Opened(group, turn, "", str(error))
        self._opened.put(opened)
        self._wake()
