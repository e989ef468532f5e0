"""Writes that fail: an honest error, and pages that come back only when nobody can write into them any more."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from cluster import Cluster, held_by
from fake_model import FAKE, complete, expected
from streams import DEADLINE_S, asking, events
from waiting import eventually

from tandem.runtime.embedded import EmbeddedRegistry

PROMPT = list(b"a prompt that takes several pages, so that some of it may land and some of it may not")

pytestmark = pytest.mark.usefixtures("no_other_cluster")


@contextmanager
def faulty(monkeypatch: pytest.MonkeyPatch, fault: str) -> Iterator[Cluster]:
    """The second write of the one prefill rank fails like this."""
    with monkeypatch.context() as patch:
        patch.setenv("TANDEM_TEST_FAULTS", "1")
        patch.setenv("TANDEM_TEST_FAULT_PLAN", json.dumps({"at": {"2": fault}, "seconds": 0.5}))
        with Cluster(*FAKE, "--prefill-pp", "1") as cluster:
            yield cluster


def fail_once(cluster: Cluster, fault: str) -> None:
    """Whether the failure or token 0 comes first is a race: a status if nothing was sent yet, else an error event."""
    with closing(asking(cluster, {"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True})) as connection:
        response = connection.getresponse()
        last = list(events(response))[-1] if response.status == 200 else json.load(response)
    assert last["error"]["code"] == "kv_transfer_failed"
    eventually(lambda: f"fault acted: {fault}" in cluster.stderr(), "the fault bites")


def test_a_write_that_failed_for_sure_gives_its_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty(monkeypatch, "fail_settled") as cluster:
        fail_once(cluster, "fail_settled")
        cluster.at_rest()
        answer = complete(cluster, prompt=PROMPT, max_tokens=50, ignore_eos=True)
        assert answer["choices"][0]["text"] == expected(PROMPT, 50)


@pytest.mark.parametrize("fault", ["fail_unsettled", "land_late", "land_partly"])
def test_pages_of_a_write_that_may_still_land_are_quarantined(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with faulty(monkeypatch, fault) as cluster:
        fail_once(cluster, fault)
        eventually(lambda: cluster.state("d0.1")["pages"]["quarantined"], "decode quarantines the pages")
        state = cluster.state("p0.0")
        assert held_by(state), "prefill must keep the source pages: the write may still read them"
        quarantined = cluster.state("d0.0")["pages"]["quarantined"]
        for _ in range(3):
            answer = complete(cluster, prompt=PROMPT, max_tokens=50, ignore_eos=True)
            assert answer["choices"][0]["text"] == expected(PROMPT, 50)
        assert cluster.state("d0.0")["pages"]["quarantined"] == quarantined, "nothing but a fence may free them"


def test_an_external_registry_serves_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    registry = EmbeddedRegistry(tmp_path_factory.mktemp("r"))
    try:
        with Cluster(*FAKE, "--registry-url", registry.url) as cluster:
            answer = complete(cluster, prompt=PROMPT, max_tokens=5, ignore_eos=True)
            assert answer["choices"][0]["text"] == expected(PROMPT, 5)
    finally:
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
