"""A real `tandem up` for process tests, with what its ranks say of themselves."""

import json
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import bench.cluster

State = dict[str, Any]

LOOK_S = 0.02
ANSWER_S = 10.0
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
        with urllib.request.urlopen(f"http://{self.http[name]}/state", timeout=ANSWER_S) as answer:
            return json.load(answer)

    def at_rest(self, deadline_s: float = 60.0) -> dict[str, State]:
        """Wait until nothing is in flight on any rank and every page is back; fails with what is still held."""
        until = time.monotonic() + deadline_s
        while True:
            states = self.states()
            held = {name: left for name, state in states.items() if (left := held_by(state))}
            if not held:
                return states
            assert time.monotonic() < until, f"not at rest after {deadline_s:g} s: {held}\n{self.stderr()}"
            threading.Event().wait(LOOK_S)


def held_by(state: State) -> State:
    """What keeps a rank from being at rest."""
    left = {name: state[name] for name in ("rooms", "sessions", "facts", "ticks_in_flight") if state[name]}
    pages = state["pages"]
    return left | ({"pages": pages} if pages["free"] + pages["cached"] != pages["total"] else {})
