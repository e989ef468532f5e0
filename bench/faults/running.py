"""A cluster whose processes come and go: where they are now, whether they serve, and whether they are at rest."""

import contextlib
import json
import os
import re
import select
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from bench.cluster import READY, Cluster

State = dict[str, Any]

ANSWER_S = 10.0
LOOK_S = 0.05
REST_S = 90.0
OUTCOME = re.compile(r"request ([0-9a-f]{16}) on .*, (\w+)$")
"""The router's last word on a request that it had accepted: its id, and how it ended."""


class NotSo(Exception):
    """What must come true has not."""


class Running(Cluster):
    """Like `Cluster`; `pids` is up to date after `catch_up`. Ranks are asked where the router last saw them."""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """As of a `Cluster`, with time for what its processes were in the middle of."""
        self.process.send_signal(number)
        return self.wait(REST_S)

    def catch_up(self) -> None:
        """Take over what the newest READY line says. Its reader must not let the supervisor wait."""
        assert self.process.stdout is not None
        out, text = self.process.stdout.fileno(), b""
        while select.select([out], [], [], 0)[0] or (text and not text.endswith(b"\n")):
            if not (data := os.read(out, 1 << 16)):
                break
            text += data
        if READY in text:
            self._take(text)

    def lines(self) -> list[str]:
        """All that it has written to standard error."""
        with open(f"/proc/self/fd/{self._log.fileno()}", errors="replace") as file:
            return file.readlines()

    def get(self, path: str) -> Any:
        """Of the router's admin port. Raises OSError."""
        return get(self.admin_url, path)

    def workers(self) -> list[State]:
        """The groups, as the router sees them."""
        found: list[State] = self.get("/workers")["workers"]
        return found

    def members(self) -> dict[str, State]:
        """Every registered rank's address and epoch, by name such as p0.1."""
        return {f"{one['name']}.{member['rank']}": member for one in self.workers() for member in one["members"]}

    def state(self, name: str) -> State:
        """GET /state of a rank. Raises OSError or KeyError where there is none."""
        found: State = get(f"http://{self.members()[name]['http']}", "/state")
        return found

    def states(self) -> dict[str, State]:
        """GET /state of every rank. Raises OSError."""
        return {name: get(f"http://{member['http']}", "/state") for name, member in self.members().items()}

    def epochs(self) -> dict[str, int]:
        """The lowest epoch of each group's ranks; 0 where one has none, or is missing."""
        return {
            one["name"]: min(
                [member["epoch"] for member in one["members"]] if len(one["members"]) == one["size"] else [0]
            )
            for one in self.workers()
        }

    def serves(self, above: Mapping[str, int], deadline_s: float = REST_S) -> None:
        """Wait until all groups are usable, these in an epoch above the given one. Raises NotSo."""

        def missing() -> Any:
            self.catch_up()
            epochs = self.epochs()
            late = [f"{name} in epoch {epochs[name]}" for name, epoch in above.items() if epochs[name] <= epoch]
            return late or [f"{one['name']} {one['state']}" for one in self.workers() if not one["usable"]]

        self.until_none(missing, "does not serve again", deadline_s)

    def at_rest(self, deadline_s: float = REST_S) -> None:
        """Wait until nothing is in flight on any rank, and every page is back. Raises NotSo."""

        def held() -> State:
            self.catch_up()
            states = self.states()
            open_requests = {name: count for name, count in self.get("/requests").items() if count}
            left = {name: left for name, state in states.items() if (left := held_by(state))}
            return left | ({"router": open_requests} if open_requests else {})

        self.until_none(held, "is not at rest", deadline_s)

    def until_none(self, look: Any, what: str, deadline_s: float = REST_S) -> None:
        """Until `look` finds nothing any more. Raises NotSo with what it found last."""
        until_s, found = time.monotonic() + deadline_s, "nobody answers"
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError, KeyError):
                if not (found := look()):
                    return
            time.sleep(LOOK_S)
        raise NotSo(f"the cluster {what} after {deadline_s:g} s: {found}")


def get(url: str, path: str) -> Any:
    """GET some JSON. Raises OSError."""
    with urllib.request.urlopen(f"{url}{path}", timeout=ANSWER_S) as answer:
        return json.load(answer)


def held_by(state: State) -> State:
    """What keeps a rank from being at rest."""
    if not state["ready"]:
        return {"waiting_for": state["waiting_for"]}
    left = {name: state[name] for name in ("rooms", "sessions", "facts", "ticks_in_flight") if state[name]}
    pages = state["pages"]
    return left | ({"pages": pages} if pages["free"] + pages["cached"] != pages["total"] else {})
