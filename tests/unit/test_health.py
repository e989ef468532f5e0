"""A rank's own HTTP port: what it answers about timelines, and when it cannot."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tandem.core.ids import RequestId
from tandem.runtime.health import NOT_FOUND, OK, Health, Reply, State

DEADLINE_S = 10
KNOWN = RequestId(0xAB)


class Rank:
    """What stands behind the port: it knows one request, and answers as long as it is awake."""

    def __init__(self) -> None:
        self.awake = True

    def state(self, timeout_s: float) -> State | None:
        return {"ready": False, "waiting_for": "its engine"} if self.awake else None

    def timelines(self, rid: RequestId | None, timeout_s: float) -> Reply | None:
        if not self.awake:
            return None
        return (OK, json.dumps(rid).encode()) if rid in (None, KNOWN) else (NOT_FOUND, b'{"error": "unknown"}')


@pytest.fixture(scope="module")
def rank() -> Rank:
    return Rank()


@pytest.fixture(scope="module")
def health(rank: Rank) -> Iterator[Health]:
    made = Health("127.0.0.1", 0, rank.state, rank.timelines)
    yield made
    made.close()


def get(health: Health, path: str) -> tuple[int, object]:
    try:
        with urllib.request.urlopen(f"http://{health.address}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_timelines_are_asked_for_all_requests_or_for_one(health: Health):
    assert get(health, "/timelines") == (200, None)
    assert get(health, "/timelines/") == (200, None)
    assert get(health, f"/timelines/{KNOWN:016x}") == (200, KNOWN)
    assert get(health, f"/timelines/{1:016x}") == (404, {"error": "unknown"})


@pytest.mark.parametrize("wanted", ["ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab/", "%00"])
def test_what_is_no_request_is_refused_by_name(health: Health, wanted: str):
    status, body = get(health, f"/timelines/{wanted}")
    assert status == 400
    assert repr(wanted) in body["error"]


@pytest.mark.parametrize("path", ["/timeline", "/timelinesx", "/", "/state/x"])
def test_other_paths_are_not_here(health: Health, path: str):
    status, body = get(health, path)
    assert (status, "/timelines" in body["error"]) == (404, True)


@pytest.mark.parametrize("path", ["/livez", "/state", "/timelines", f"/timelines/{KNOWN:016x}"])
def test_a_tick_loop_that_stands_still_is_said_so(
    health: Health, rank: Rank, path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rank, "awake", False)
    status, body = get(health, path)
    assert (status, "did not answer" in body["error"]) == (503, True)


def test_a_rank_that_is_not_ready_says_what_it_waits_for(health: Health):
    assert get(health, "/livez") == (200, {"status": "ok"})
    assert get(health, "/readyz") == (503, {"error": "not ready", "waiting_for": "its engine"})
