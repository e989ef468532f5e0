"""A storm of aborts: thousands of requests in all states, and all clients hang up at once."""

import contextlib
import json
import random
import resource
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from bench.faults.matrix import FAKE, LAYERS
from bench.faults.running import ANSWER_S, OUTCOME, Running
from bench.rows import Row, row

BENCH = "storm"
BAR = "<= 10 s"
REQUESTS, QUICK = 2000, 200
HALF_SENT = 0.1
"""Of the requests, those whose body does not come to its end."""
EARLY, MIDDLE = 0.4, 0.3
"""Of the others: those that get to decode, and those that are on their way when prefill is told to pause. For the
rest decode has pages as long as there are any."""
PROMPTS = (5, 100, 500, 1500)
TOKENS = 6000
PAGES = 16
"""For each request: so many that they hold up only some."""
FILES = 64
"""Beside one for each request, in any process."""
GONE = "client_gone"


class Storm:
    """So many open requests on a cluster, until their clients leave."""

    def __init__(self, cluster: Running, requests: int, seed: int) -> None:
        self.half_sent = int(requests * HALF_SENT)
        self.whole = requests - self.half_sent
        self.cluster = cluster
        self._rng = random.Random(seed)
        self._address = urlsplit(cluster.url)
        self._clients: list[socket.socket] = []

    def rise(self) -> None:
        """Returns when all requests have arrived, in all states, and the groups are paused. Raises NotSo."""
        early, middle = int(self.whole * EARLY), int(self.whole * MIDDLE)
        self._ask(early)
        self.cluster.until_none(self._idle_groups, "does not decode")
        self._ask(middle)
        self._tell("prefill", "pause")
        self._ask(self.whole - early - middle)
        self._ask(self.half_sent, half=True)
        self.cluster.until_none(self._not_there, "has not all requests")
        self._tell("decode", "pause")

    def states(self) -> Counter[str]:
        """How many requests are where, as the groups' first ranks and the router see them."""
        found = Counter({"half sent": self.cluster.get("/requests")["coming"]})
        found["waiting in the router"] = self.cluster.get("/status")["queued"]
        for name, state in self.cluster.states().items():
            if name.endswith(".0"):
                role = "prefill" if name.startswith("p") else "decode"
                found[f"waiting for {role}"] += state["waiting"]
                found[f"in {role}"] += state["running"]
                found[f"between two states of {role}"] += state["rooms"] - state["waiting"] - state["running"]
        return found

    def leave(self) -> float:
        """The groups go on, and all clients hang up: seconds until the cluster is at rest. Raises NotSo."""
        for role in ("prefill", "decode"):
            self._tell(role, "resume")
        begun_s = time.monotonic()
        self.hang_up()
        self.cluster.at_rest()
        return time.monotonic() - begun_s

    def hang_up(self) -> None:
        """All clients are gone."""
        for client in self._clients:
            client.close()

    def terminals(self) -> Counter[int]:
        """How many requests had so many ends; each should have one. Those that were half sent were never accepted."""
        ends = Counter(found[1] for line in self.cluster.lines() if (found := OUTCOME.search(line)))
        return Counter(ends.values()) + Counter({0: self.whole - len(ends)})

    def _ask(self, count: int, *, half: bool = False) -> None:
        for _ in range(count):
            content = self._body()
            lines = ("POST /v1/completions HTTP/1.1", "Host: storm", "Content-Type: application/json")
            head = "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode()
            client = socket.create_connection((self._address.hostname, self._address.port))
            client.sendall(head + content[: len(content) // 2 if half else None])
            self._clients.append(client)

    def _body(self) -> bytes:
        prompt = [self._rng.randrange(32, 127) for _ in range(self._rng.choice(PROMPTS))]
        wanted = {"model": f"fake:{LAYERS}", "prompt": prompt, "max_tokens": TOKENS}
        return json.dumps({**wanted, "ignore_eos": True, "stream": True}).encode()

    def _tell(self, role: str, order: str) -> None:
        for one in [one for one in self.cluster.workers() if one["role"] == role]:
            told = urllib.request.Request(f"{self.cluster.admin_url}/workers/{one['name']}/{order}", method="POST")
            urllib.request.urlopen(told, timeout=ANSWER_S).close()

    def _idle_groups(self) -> list[str]:
        return [one["name"] for one in self.cluster.workers() if one["role"] == "decode" and not one["running"]]

    def _not_there(self) -> str:
        there = self.cluster.get("/requests")
        wanted = (self.whole, self.half_sent)
        return "" if (there["admitted"], there["coming"]) == wanted else f"{there}, not {wanted}"


@contextlib.contextmanager
def storm_on(requests: int, seed: int, *arguments: str) -> Iterator[Storm]:
    """On a cluster of its own, with two groups of each role."""
    allow_files(requests + FILES)
    queue = (f"--queue-size={requests}", "--queue-timeout-secs=600")  # nobody is refused
    flags = (f"--max-concurrent-requests={requests}", *queue, f"--num-pages={PAGES * requests}", *arguments)
    with tempfile.TemporaryDirectory() as dumps, Running(*FAKE, f"--dump-dir={dumps}", *flags) as cluster:
        storm = Storm(cluster, requests, seed)
        try:
            yield storm
        finally:
            storm.hang_up()


def allow_files(count: int) -> None:
    """Let this process, and those that it starts, hold so many files. Raises ValueError where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def measure(*, quick: bool, seed: int) -> list[Row]:
    """One storm. Raises ClusterFailed or NotSo when the cluster does not come to rest."""
    requests = QUICK if quick else REQUESTS
    with storm_on(requests, seed) as storm:
        storm.rise()
        states = storm.states()
        print(
            "in these states:", ", ".join(f"{count} {state}" for state, count in states.most_common()), file=sys.stderr
        )
        seconds = storm.leave()
        astray = sum(count for ends, count in storm.terminals().items() if ends != 1)
        return [
            row(BENCH, f"{requests} requests left: at rest", seconds, "s", bar=BAR),
            row(BENCH, "those without exactly one end", astray, "requests", bar="<= 0"),
        ]
