"""Two routers in front of the same groups: they share nothing but the registry, and one outlives the other."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from fake_model import FAKE, expected, text_of
from streams import model_of, stream
from waiting import DEADLINE_S, eventually

PROMPT = list(b"a prompt of some length")


class OtherRouter:
    """A router of its own, in front of a cluster that has one already: what another host would run."""

    def __init__(self, cluster: Cluster) -> None:
        proc = Path("/proc") / str(cluster.pids["router"])
        words = proc.joinpath("cmdline").read_bytes().decode().split("\0")[:-1]
        told = dict(pair.split("=", 1) for pair in proc.joinpath("environ").read_bytes().decode().split("\0") if pair)
        kept = [word for word in words if not word.startswith(("--port=", "--admin-port=", "--supervised"))]
        environment = {**os.environ, "TANDEM_REGISTRY_URL": told["TANDEM_REGISTRY_URL"]}
        self.process = subprocess.Popen(
            [*kept, "--port=0", "--admin-port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self.url, self.admin_url = "", ""
        self.pids, self.http = cluster.pids, cluster.http
        try:
            self._read_ready()
        except BaseException:
            self.close()
            raise

    def _read_ready(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "the other router was not ready in time"
        facts: dict[str, Any] = json.loads(self.process.stdout.readline().removeprefix(b"READY "))
        self.url, self.admin_url = facts["url"], facts["admin_url"]
        eventually(lambda: self._ready(), deadline_s=DEADLINE_S)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.admin_url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def cluster(cluster_of) -> Cluster:
    return cluster_of(*FAKE)


@pytest.fixture
def other(cluster: Cluster) -> Iterator[OtherRouter]:
    made = OtherRouter(cluster)
    yield made
    made.close()


def ask(router: Any, max_tokens: int) -> Any:
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return stream(router, body)


def test_both_serve_at_the_same_time(cluster: Cluster, other: OtherRouter):
    assert model_of(other) == model_of(cluster)
    with ask(cluster, 200) as one, ask(other, 200) as two:
        assert text_of(one) == text_of(two) == expected(PROMPT, 200)


def test_one_dies_and_the_groups_give_its_requests_up_while_the_other_goes_on(cluster: Cluster, other: OtherRouter):
    with ask(other, 4000) as left, ask(cluster, 300) as kept:
        assert left.readline().startswith(b"data: ")
        other.process.send_signal(signal.SIGKILL)
        assert text_of(kept) == expected(PROMPT, 300)
    states = cluster.at_rest()
    assert {state["rooms"] for state in states.values()} == {0}
    with ask(cluster, 20) as again:
        assert text_of(again) == expected(PROMPT, 20)


def test_one_that_is_told_to_end_finishes_what_it_has(cluster: Cluster, other: OtherRouter):
    with ask(other, 300) as open_one:
        first = json.loads(open_one.readline().removeprefix(b"data: "))["choices"][0]["text"]
        other.process.send_signal(signal.SIGTERM)
        assert first + text_of(open_one) == expected(PROMPT, 300)
    assert other.process.wait(DEADLINE_S) == 0
    with ask(cluster, 20) as again:
        assert text_of(again) == expected(PROMPT, 20)
