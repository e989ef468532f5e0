"""A real `tandem up` for process tests, with what its ranks say of themselves."""

import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, eventually

import bench.cluster

State = dict[str, Any]

LOOK_S = 0.02
BUSY = 503
"""A rank's status where its loop did not get round to answering."""
DUMPS = Path(tempfile.gettempdir()) / "tandem-test-dumps"


class Cluster(bench.cluster.Cluster):
    """`with Cluster("--model", "fake:8") as cluster`: see bench.cluster for what it has.

    What its ranks leave behind when they are killed goes to a temporary directory, not to the user's.
    """

    def __init__(self, *arguments: str) -> None:
        super().__init__(f"--dump-dir={DUMPS}", *arguments)

    def states(self) -> dict[str, State]:
        """GET /state of every rank, by name such as p0.1."""
        return {name: self.state(name) for name in self.http}

    def state(self, name: str) -> State:
        """GET /state of one rank."""
        return eventually(lambda: state_at(self.http[name]), f"{name} gets round to telling its state")

    def at_rest(self, deadline_s: float = DEADLINE_S) -> dict[str, State]:
        """Wait until nothing is in flight on any rank and every page is back; fails with what is still held."""
        until = time.monotonic() + deadline_s
        while True:
            states = self.states()
            held = {name: left for name, state in states.items() if (left := held_by(state))}
            if not held:
                return states
            assert time.monotonic() < until, f"not at rest after {deadline_s:g} s: {held}\n{self.stderr()}"
            threading.Event().wait(LOOK_S)


def state_at(address: str) -> State | None:
    """GET /state of a rank; none where its loop is too busy to tell it."""
    try:
        with urllib.request.urlopen(f"http://{address}/state", timeout=DEADLINE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != BUSY:
            raise
        error.close()
        return None


def held_by(state: State) -> State:
    """What keeps a rank from being at rest."""
    left = {name: state[name] for name in ("rooms", "sessions", "facts", "ticks_in_flight") if state[name]}
    pages = state["pages"]
    return left | ({"pages": pages} if pages["free"] + pages["cached"] != pages["total"] else {})
