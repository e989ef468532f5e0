"""Writes that fail: the next attempt is right, and pages come back only when nobody can write into them any more."""

import json
import os
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from cluster import Cluster
from fake_model import FAKE, all_answered_right, complete, expected
from faults import WRITES, acted, all_given_back, answered_right, faulty, fenced, over, story, undisturbed
from streams import DEADLINE_S
from waiting import eventually

from kvtransfer.transports.faulty import Fault
from tandem.runtime.embedded import EmbeddedRegistry

PROMPT = list(b"a prompt that takes several pages, so that some of it may land and some of it may not")
OTHER = list(b"another one, which was there before anything failed, and goes on while it does")
CROWD = [[65 + number] * 80 for number in range(4)]
SOON = ("--quiesce-ms", "500", "--num-pages", "64", "--checksum-sample", "1")
UNSETTLED = [Fault.FAIL_UNSETTLED, Fault.LAND_LATE, Fault.LAND_PARTLY]

pytestmark = pytest.mark.usefixtures("no_other_cluster")


def refused(cluster: Cluster, prompt: list[int]) -> tuple[int, str, str]:
    """Status, code and request id of the answer."""
    with pytest.raises(urllib.error.HTTPError) as error:
        complete(cluster, prompt=prompt, max_tokens=50, ignore_eos=True)
    return error.value.code, json.load(error.value)["error"]["code"], error.value.headers["x-request-id"]


@pytest.mark.parametrize("backend", ["mooncake", "shm"])
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (Fault.FAIL_SETTLED, 0),
        (Fault.FAIL_UNSETTLED, 0),
        (Fault.LAND_PARTLY, 0),
        (Fault.LAND_LATE, 0.2),  # into pages that are held for it
        (Fault.LAND_LATE, 1.5),  # when there is a fence before them
        (Fault.CORRUPT, 0),
    ],
)
def test_after_a_write_that_fails_every_text_is_right_and_all_pages_come_back(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, seconds: float, backend: str
) -> None:
    """Those of another one that decodes, and of a crowd that has all pages which are free."""
    with faulty(monkeypatch, {WRITES + 2: fault}, *SOON, *over(backend), seconds=seconds) as cluster:
        with undisturbed(cluster, OTHER, 400):
            request_id = answered_right(cluster, PROMPT)
            all_answered_right(cluster, CROWD, max_tokens=50)
            while cluster.state("d0.0")["held"] or cluster.state("p0.0")["held"]:
                all_answered_right(cluster, CROWD, max_tokens=50)
        acted(cluster, fault)
        all_given_back(cluster)
        first, second = story(cluster, request_id, fault).attempts
        assert bool(fenced(first)) is (fault in UNSETTLED)
        assert fenced(second) == set()
        answered_right(cluster, PROMPT)


@pytest.mark.parametrize(
    ("fault", "attempts", "code"),
    [
        (Fault.FAIL_SETTLED, 3, "kv_transfer_failed"),
        (Fault.FAIL_UNSETTLED, 3, "kv_transfer_failed"),
        (Fault.CORRUPT, 2, "kv_checksum"),
    ],
)
def test_a_request_whose_every_attempt_fails_ends_by_name(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, attempts: int, code: str
) -> None:
    """Of each attempt's writes two at least are begun, so the faulty one of the next is among its own."""
    failing = {number * WRITES + 2: fault for number in range(attempts)}
    with faulty(monkeypatch, failing, *SOON, "--decode-pp", "1") as cluster:
        status, said, request_id = refused(cluster, PROMPT)
        assert (status, said) == (502, code)
        acted(cluster, fault, times=attempts)
        all_given_back(cluster)
        assert len(story(cluster, request_id, fault).attempts) == attempts
        answered_right(cluster, PROMPT)


def test_an_external_registry_serves_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    registry = EmbeddedRegistry(tmp_path_factory.mktemp("r"))
    try:
        with Cluster(*FAKE, "--registry-url", registry.url) as cluster:
            answer = complete(cluster, prompt=PROMPT, max_tokens=5, ignore_eos=True)
            assert answer["choices"][0]["text"] == expected(PROMPT, 5)
    finally:
        registry.stop()


def test_s38_a_registry_that_does_not_answer_at_the_start_is_waited_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    registry = EmbeddedRegistry(tmp_path_factory.mktemp("r"))
    os.kill(registry.pid, signal.SIGSTOP)
    cluster = Cluster(*FAKE, "--registry-url", registry.url)
    try:
        with ThreadPoolExecutor(1) as starting, ExitStack() as ending:
            serving = starting.submit(ending.enter_context, cluster)
            eventually(lambda: hasattr(cluster, "process"), "its processes are started")
            eventually(lambda: "waiting for the registry" in cluster.stderr(), "it says what it waits for")
            os.kill(registry.pid, signal.SIGCONT)
            serving.result()
            answered_right(cluster, PROMPT)
    finally:
        os.kill(registry.pid, signal.SIGCONT)
        registry.stop()


def usable_groups(cluster: Cluster) -> int:
    with urllib.request.urlopen(f"{cluster.admin_url}/workers", timeout=DEADLINE_S) as answer:
        return sum(group["usable"] for group in json.load(answer)["workers"])


def test_requests_are_spread_over_all_pairs_of_groups() -> None:
    with Cluster(*FAKE, "--prefill-groups", "2", "--decode-groups", "2", "--prefill-pp", "1") as cluster:
        eventually(lambda: usable_groups(cluster) == 4, "the router has heard all groups")
        for number in range(8):
            prompt = [65 + number, *PROMPT]
            answer = complete(cluster, prompt=prompt, max_tokens=8, ignore_eos=True)
            assert answer["choices"][0]["text"] == expected(prompt, 8)
        ticks = {name: state["tick"] for name, state in cluster.at_rest().items()}
        assert set(ticks) == {"p0.0", "p1.0", "d0.0", "d0.1", "d1.0", "d1.1"}
        assert all(tick > 0 for tick in ticks.values()), ticks
