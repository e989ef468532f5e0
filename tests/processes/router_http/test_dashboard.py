"""The dashboard's routes on a real admin port: its files, its stream, its key, and ranks that do not answer."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import msgspec
import pytest
from waiting import DEADLINE_S

from router.auth import Doors
from router.dashboard.pages import PATHS
from router.dashboard.words import Snapshot
from router.tenants import Keys, one_key


def get(serving, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(serving.admin_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def opened(serving) -> HTTPConnection:
    line = HTTPConnection(urlsplit(serving.admin_url).netloc, timeout=DEADLINE_S)
    line.request("GET", "/dashboard/events")
    return line


def snapshots(response: HTTPResponse) -> Iterator[Snapshot]:
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    while line := response.readline():
        if line.startswith(b"data: "):
            yield msgspec.json.decode(line.removeprefix(b"data: "), type=Snapshot)


def test_the_page_has_nothing_from_anywhere_else(serving):
    assert "/dashboard" in PATHS
    assert "/dashboard/vendor/uplot/uPlot.esm.js" in PATHS
    assert not any("LICENSE" in path for path in PATHS)
    for path in sorted(PATHS):
        status, headers, content = get(serving, path)
        assert status == 200, path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        if "/vendor/" not in path:
            assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b""), path
            assert b"https://" not in content, path
            assert b"innerHTML" not in content, "text of others must never be read as HTML"


def test_a_snapshot_tells_of_the_groups_and_why_their_ranks_are_not_known(serving):
    with closing(opened(serving)) as line:
        now = next(snapshots(line.getresponse()))
    assert [(group.name, group.role, group.state) for group in now.groups] == [
        ("d0", "decode", "usable"),
        ("p0", "prefill", "usable"),
    ]
    for group in now.groups:
        (rank,) = group.ranks
        assert not rank.ready
        assert "it cannot be asked at" in rank.cause
    assert (now.router.state, now.model) == ("ready", "tiny")


def test_a_group_that_is_lost_is_told_with_its_cause(start):
    serving = start()
    with closing(opened(serving)) as line:
        told = snapshots(line.getresponse())
        assert next(told).losses == []
        serving.router.group_lost("p0", "rank 1 was killed by SIGKILL")
        now = next(now for now in told if now.losses)
    assert [(loss.group, loss.cause) for loss in now.losses] == [("p0", "rank 1 was killed by SIGKILL")]
    (lost,) = [group for group in now.groups if group.name == "p0"]
    assert (lost.state, lost.cause) == ("lost", "rank 1 was killed by SIGKILL")
    assert "p0 was lost" in now.router.why


def test_a_crash_is_told_once_by_its_better_cause(start):
    """The connection breaks first, and then the supervisor says of what."""
    serving = start()
    with closing(opened(serving)) as line:
        told = snapshots(line.getresponse())
        next(told)
        serving.double.end("p0")
        now = next(now for now in told if now.losses)
        assert [(loss.group, loss.cause) for loss in now.losses] == [("p0", "its rank 0 hung up")]
        serving.router.group_lost("p0", "rank 0 was killed by SIGKILL")
        now = next(now for now in told if now.losses[0].cause != "its rank 0 hung up")
    assert [(loss.group, loss.cause) for loss in now.losses] == [("p0", "rank 0 was killed by SIGKILL")]


def test_the_files_are_for_everybody_and_what_they_show_is_not(start):
    doors = Doors(operators=Keys([one_key("open", "admin", admin=True)]), admin=True)
    serving = start(registered=False, doors=doors)
    for path in sorted(PATHS):
        assert get(serving, path)[0] == 200, path
    for path in ("/dashboard/events", "/dashboard/requests/00000000000000ab", "/dashboard/", "/dashboard/nothing"):
        assert get(serving, path)[0] == 401, path
        assert get(serving, path, authorization="Bearer shut")[0] == 401, path
    assert get(serving, "/dashboard/requests/00000000000000ab", authorization="Bearer open")[0] == 404


def test_a_browser_finds_the_page_at_the_root_and_a_program_finds_nothing(start):
    serving = start(registered=False)
    status, headers, page = get(serving, "/", accept="text/html,*/*;q=0.8")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page == get(serving, "/dashboard")[2]
    line = HTTPConnection(urlsplit(serving.admin_url).netloc, timeout=DEADLINE_S)
    with closing(line):
        line.request("GET", "/", headers={"accept": "text/html"})
        answer = line.getresponse()
        assert (answer.status, answer.headers["location"]) == (307, "/dashboard")
    status, _, told = get(serving, "/")
    assert (status, json.loads(told)["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [("00000000000000ab", 404, "unknown_request"), ("%3Cimg%20src=x%3E", 400, "invalid_request_id")],
)
def test_a_request_that_nobody_knows_is_refused(serving, text: str, status: int, code: str):
    found, _, body = get(serving, f"/dashboard/requests/{text}")
    assert found == status
    assert json.loads(body)["error"]["code"] == code


def test_an_open_stream_ends_whole_when_the_router_does(start, until):
    serving = start()
    with closing(opened(serving)) as line:
        response = line.getresponse()
        assert response.readline() == b"retry: 1000\n"
        serving.router.stop()
        response.read()  # raises IncompleteRead where the answer is cut
    assert until(lambda: serving.exit_code is not None)
    assert serving.exit_code == 0


def test_what_waited_in_the_routers_queue_is_remembered(start, until):
    serving = start(max_concurrent_requests=1)
    serving.double.play(hold_at=1)
    ask = {"model": "tiny", "prompt": "hi", "max_tokens": 3}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(serving.post, "/v1/completions", ask) for _ in range(2)]
        until(lambda: serving.get("/status", admin=True)[1]["queued"] == 1)
        serving.double.go()
        ids = [answer.result()[1]["x-request-id"] for answer in answers]
    assert sum(serving.router.service.recalled.waited_ms(request_id) > 0 for request_id in ids) == 1
