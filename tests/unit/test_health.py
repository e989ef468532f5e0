"""A rank's own HTTP port: what it answers about timelines, and when it cannot."""

import json
import socket
import socketserver
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partialmethod

import pytest

from tandem.core.ids import RequestId
from tandem.runtime.health import NOT_FOUND, OK, Answers, Health, Reply, State

DEADLINE_S = 60
KNOWN = RequestId(0xAB)


class Rank:
    """What stands behind the port: it knows one request, and answers as long as it is awake."""

    def __init__(self) -> None:
        self.awake = True
        self.loaded = True

    def state(self, timeout_s: float) -> State | None:
        return {"ready": False, "waiting_for": "its engine", "loaded": self.loaded} if self.awake else None

    def timelines(self, rid: RequestId | None, timeout_s: float, since_us: int) -> Reply | None:
        if not self.awake:
            return None
        if since_us:
            return OK, json.dumps({"since": since_us}).encode()
        return (OK, json.dumps(rid).encode()) if rid in (None, KNOWN) else (NOT_FOUND, b'{"error": "unknown"}')

    def metrics(self, timeout_s: float) -> bytes:
        return b"# nothing yet\n"


@pytest.fixture(scope="module")
def rank() -> Rank:
    return Rank()


@pytest.fixture(scope="module")
def health(rank: Rank) -> Iterator[Health]:
    made = Health("127.0.0.1", 0, Answers(rank.state, rank.timelines, rank.metrics))
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


def test_it_has_started_once_its_weights_are_loaded(health: Health, rank: Rank):
    rank.loaded = False
    assert get(health, "/startupz") == (503, {"error": "not started", "waiting_for": "its engine"})
    rank.loaded = True
    assert get(health, "/startupz") == (200, {"status": "ok"})
    assert get(health, "/readyz")[0] == 503


def test_whoever_asks_again_hears_of_what_has_changed_since(health: Health):
    assert get(health, "/timelines?since_us=1796063806177361") == (200, {"since": 1796063806177361})
    for wrong in ("?since_us=", "?since_us=-1", "?since_us=1e3", "?since_us=" + "9" * 19, "?other=1"):
        assert get(health, f"/timelines{wrong}")[0] == 404


@pytest.mark.parametrize("wanted", ["ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab/", "%00"])
def test_what_is_no_request_is_refused_by_name(health: Health, wanted: str):
    status, body = get(health, f"/timelines/{wanted}")
    assert status == 400
    assert repr(wanted) in body["error"]


@pytest.mark.parametrize("path", ["/timeline", "/timelinesx", "/", "/state/x"])
def test_other_paths_are_not_here(health: Health, path: str):
    status, body = get(health, path)
    assert (status, "/timelines" in body["error"]) == (404, True)


def test_who_leaves_before_the_answer_is_not_worth_a_line(rank: Rank, capfd: pytest.CaptureFixture[str]):
    asked, left = threading.Event(), threading.Event()

    def metrics(timeout_s: float) -> bytes:
        asked.set()
        left.wait(DEADLINE_S)
        return b"#" * 2**20

    health = Health("127.0.0.1", 0, Answers(rank.state, rank.timelines, metrics))
    host, port = health.address.split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(DEADLINE_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets
    threads = [each for each in threading.enumerate() if "process_request_thread" in each.name]
    left.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    health.close()
    assert (len(threads), capfd.readouterr().err) == (1, "")


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


def test_its_end_waits_for_no_look_of_its_thread(monkeypatch: pytest.MonkeyPatch, rank: Rank) -> None:
    serve_for_ever = partialmethod(socketserver.BaseServer.serve_forever, poll_interval=3600.0)
    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", serve_for_ever)
    made = Health("127.0.0.1", 0, Answers(rank.state, rank.timelines, rank.metrics))
    with urllib.request.urlopen(f"http://{made.address}/livez", timeout=DEADLINE_S):
        pass
    made.close()
    made._thread.join(DEADLINE_S)
    assert not made._thread.is_alive()
