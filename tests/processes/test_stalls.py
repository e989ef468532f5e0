"""A stage that stands still for a moment, or dies without serving anybody's health port: who waits, and who knows."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from by_hand import ByHand, pair
from fake_model import LAYERS, complete, expected, text_of
from streams import events, stream
from waiting import eventually

PATIENT = "--timer-scale=5"
"""A rank counts as dead after 12.5 s: what stands still in here does so for an instant."""
FLAGS = (f"--model=fake:{LAYERS}", "--disaggregation-transfer-backend=shm", PATIENT)
PROMPT = list(b"whoever waits, waits for somebody with a name")
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True}
RANKS = ("d0.0", "d0.1", "d0.2")

pytestmark = pytest.mark.usefixtures("no_other_cluster")


@pytest.fixture
def cluster() -> Iterator[ByHand]:
    with pair(*FLAGS, size=3) as started:
        yield started


def awaited(cluster: ByHand, name: str) -> str:
    """What a rank cannot go on without, such as return; empty: nothing."""
    found = cluster.state(name)["awaiting"] or ""
    return str(found).partition("(")[0]


def stands_still(cluster: ByHand, name: str) -> bool:
    """Whether a rank has not stepped a tick between two looks."""
    return bool(cluster.state(name)["tick"] == cluster.state(name)["tick"])


@pytest.mark.parametrize(("victim", "waits"), [("d0.1", "d0.0"), ("d0.2", "d0.0"), ("d0.0", None)])
def test_a_rank_that_stands_still_for_a_moment_holds_its_ring_up_and_ends_nothing(
    victim: str, waits: str | None, cluster: ByHand
) -> None:
    epochs = {name: cluster.state(name)["epoch"] for name in RANKS}
    with stream(cluster, LONG) as response:
        first = next(events(response))["choices"][0]["text"]
        eventually(lambda: cluster.state("d0.0")["running"] == 1, "it decodes")
        cluster.send(victim, signal.SIGSTOP)
        others = [name for name in RANKS if name != victim]
        eventually(lambda: all(stands_still(cluster, name) for name in others), "the others can do no more")
        if waits is not None:
            assert awaited(cluster, waits) == "return", "rank 0 knows that its ring owes it something"
        cluster.send(victim, signal.SIGCONT)
        assert first + text_of(response) == expected(PROMPT, LONG["max_tokens"])
    assert {name: cluster.state(name)["epoch"] for name in RANKS} == epochs
    assert cluster.dumped() == []


def ready(cluster: ByHand) -> int:
    """The status of the router's /readyz."""
    try:
        with urllib.request.urlopen(f"{cluster.url}/readyz") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("victim", ["d0.1", "d0.2"])
def test_a_group_is_not_ready_when_any_of_its_stages_has_died(victim: str, cluster: ByHand) -> None:
    """Each rank answers for itself: that rank 0 is alive says nothing."""
    before = cluster.state("d0.0")["epoch"]
    cluster.kill(victim)
    eventually(lambda: ready(cluster) == 503, "the router does not call itself ready")
    assert cluster.get("d0.0", "/livez")[0] == 200
    assert cluster.get("d0.0", "/readyz")[0] == 503
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(cluster, prompt=PROMPT, max_tokens=5)
    assert (refused.value.code, json.load(refused.value)["error"]["code"]) == (503, "no_decode")
    cluster.start(victim)
    cluster.formed("d0", above=before)
    eventually(lambda: ready(cluster) == 200, "it is ready again")
    answer = complete(cluster, prompt=PROMPT, max_tokens=20, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(PROMPT, 20)
