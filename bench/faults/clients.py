"""Clients that ask one thing after another, and keep count of how each of it ended."""

import random
import threading
import time
from collections import Counter

from bench.faults.running import Running
from bench.faults.streams import ANSWER_S, Ask, End, Ended, Stream

TOKENS = (1, 2, 20, 100, 400)
LEAVE = 0.3
"""Of the clients leave before the end."""
PAUSE_S = 0.2
"""After an error, as a client would who does not want to do harm."""
HONEST = (
    "group_lost",
    "no_prefill",
    "no_decode",
    "draining",
    "overloaded",
    "queue_full",
    "too_many_requests",
    "kv_transfer_failed",
    "request_quarantined",
    "router_stalled",
    "shutting_down",
    "request_aborted",
)
"""Codes that a client may see when faults leave no pair."""


class Clients:
    """`count` of them ask at the same time, in rounds."""

    def __init__(self, cluster: Running, ask: Ask, count: int, seed: int) -> None:
        self.ends = Counter[str]()
        """Of all requests, by how they ended."""
        self.bad: list[str] = []
        """What no client may see, whatever happens."""
        self.cut = 0
        """Answers without an end: they are bad, unless something happened to the router."""
        self._cluster = cluster
        self._ask = ask
        self._rngs = [random.Random(f"{seed} {number}") for number in range(count)]
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._threads: list[threading.Thread] = []

    def begin(self, until_s: float) -> None:
        """A round: nobody asks anything new after that time."""
        self._until_s = until_s
        self._threads = [threading.Thread(target=self._run, args=(rng,), daemon=True) for rng in self._rngs]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait until all answers have ended."""
        for thread in self._threads:
            thread.join()

    def crowd(self, seed: float, count: int) -> None:
        """So many more ask at once, and leave before their answers end. They belong to the round."""
        thread = threading.Thread(target=self._crowd, args=(random.Random(seed), count), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _crowd(self, rng: random.Random, count: int) -> None:
        asked = [self._ask(rng, TOKENS[-1]) for _ in range(count)]
        streams = [Stream(self._cluster.url, one, rng.randrange(0, 200)) for one in asked]
        for stream in streams:
            self._count(stream.wait(2 * ANSWER_S))

    def _run(self, rng: random.Random) -> None:
        while time.monotonic() < self._until_s:
            tokens = rng.choice(TOKENS)
            leave_after = rng.randrange(tokens) if rng.random() < LEAVE else None
            stream = Stream(self._cluster.url, self._ask(rng, tokens), leave_after)
            ended = stream.wait(2 * ANSWER_S)
            self._count(ended)
            if ended.end in (End.ERROR, End.CUT):
                time.sleep(PAUSE_S)

    def _count(self, ended: Ended) -> None:
        with self._lock:
            self.ends[str(ended) if ended.end is End.ERROR else ended.end.value] += 1
            self.cut += ended.end is End.CUT
            lied = ended.end is End.ERROR and ended.detail not in HONEST
            if lied or ended.end in (End.WRONG, End.HUNG):
                self.bad.append(str(ended))
