"""When a local cluster is called ready: not before every group can be told something."""

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import LEADER, Epoch
from tandem.core.members import Member
from tandem.local.readiness import Expected, Look, Looking, unusable

DEADLINE_S = 30.0
GROUPS = {"p0": RoleName.PREFILL, "p1": RoleName.PREFILL, "d0": RoleName.DECODE}


class Router:
    """A router's admin port: it takes requests, and has heard these groups."""

    def __init__(self) -> None:
        self.heard = ["p0", "d0"]
        self.draining: list[str] = []
        self.key = ""
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                workers = [
                    {
                        "name": name,
                        "usable": name in router.heard,
                        "state": "draining" if name in router.draining else "connecting",
                    }
                    for name in GROUPS
                ]
                body = json.dumps({"workers": workers} if self.path == "/workers" else {"status": "ready"})
                shown = self.headers.get("Authorization", "")
                self.send_response(200 if shown.removeprefix("Bearer ") == router.key else 401)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router()
    yield made
    made.server.shutdown()
    made.server.server_close()


def members(boot_ms: int = 1) -> list[Member]:
    return [
        Member(Group(role, name, (1,)), LEADER, 1, boot_ms, "h", "f", "m", "", "", name, Limits(), epoch=Epoch(1))
        for name, role in GROUPS.items()
    ]


HTTP = {f"{name}.0": name for name in GROUPS}


class Cluster:
    """What is looked at, and what is found."""

    def __init__(self) -> None:
        self.members: list[Member] | OSError = members()
        self.looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self.looking = Looking(list(HTTP), self.read)

    def read(self) -> list[Member]:
        if isinstance(self.members, OSError):
            raise self.members
        return self.members

    def found(self) -> Look:
        return self.looks.get(timeout=DEADLINE_S)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.looking.stop()


def test_a_cluster_is_ready_when_its_router_has_heard_every_group(router: Router, cluster: Cluster):
    """Requests could go by p0 before; an order to p1 could not."""
    cluster.looking.expect(Expected(1, dict.fromkeys(HTTP, 1), router.url))
    cluster.looking.start(cluster.looks.put)
    assert cluster.found() == Look(1, HTTP, "the router to hear p1")
    router.heard.append("p1")
    assert cluster.found() == Look(1, HTTP, "")


def test_an_admin_port_that_asks_for_a_key_is_shown_it(router: Router):
    router.heard.append("p1")
    router.key = "an operator's"
    for key, missing in (("", "the router: "), (router.key, "")):
        looks: queue.SimpleQueue[Look] = queue.SimpleQueue()
        looking = Looking(list(HTTP), members, key)
        looking.expect(Expected(1, dict.fromkeys(HTTP, 1), router.url))
        looking.start(looks.put)
        assert looks.get(timeout=DEADLINE_S).missing[: len("the router: ")] == missing
        looking.stop()


def test_a_group_that_an_operator_drains_has_been_heard(router: Router, cluster: Cluster):
    router.draining = ["p1"]
    cluster.looking.expect(Expected(1, dict.fromkeys(HTTP, 1), router.url))
    cluster.looking.start(cluster.looks.put)
    assert cluster.found() == Look(1, HTTP, "")


def test_the_entry_of_a_process_that_has_ended_is_not_that_of_its_successor(router: Router, cluster: Cluster):
    """It stays in the registry until its lease ends."""
    router.heard.append("p1")
    cluster.looking.expect(Expected(1, {**dict.fromkeys(HTTP, 1), "p1.0": 2}, router.url))
    cluster.looking.start(cluster.looks.put)
    known = {name: http for name, http in HTTP.items() if name != "p1.0"}
    assert cluster.found() == Look(1, known, "p1.0 to load and register")
    cluster.members = members(boot_ms=2)
    assert cluster.found() == Look(1, HTTP, "")


def test_who_does_not_run_is_waited_for_whatever_the_registry_says(router: Router, cluster: Cluster):
    router.heard.append("p1")
    started = dict.fromkeys(HTTP, 1)
    del started["d0.0"]
    cluster.looking.expect(Expected(1, started, router.url))
    cluster.looking.start(cluster.looks.put)
    assert cluster.found().missing == "d0.0 to load and register"


def test_after_it_was_ready_it_looks_again_as_soon_as_something_else_is_expected(router: Router, cluster: Cluster):
    router.heard.append("p1")
    cluster.looking.expect(Expected(1, dict.fromkeys(HTTP, 1), router.url))
    cluster.looking.start(cluster.looks.put)
    assert cluster.found() == Look(1, HTTP, "")
    cluster.looking.expect(Expected(2, dict.fromkeys(HTTP, 1), ""))
    assert cluster.found() == Look(2, HTTP, "the router to load")
    cluster.looking.expect(Expected(3, dict.fromkeys(HTTP, 1), router.url))
    assert cluster.found() == Look(3, HTTP, "")


def test_a_registry_that_is_away_is_waited_for(router: Router, cluster: Cluster):
    router.heard.append("p1")
    cluster.members = ConnectionError("refused")
    cluster.looking.expect(Expected(1, dict.fromkeys(HTTP, 1), router.url))
    cluster.looking.start(cluster.looks.put)
    assert cluster.found() == Look(1, {}, "the registry: refused")
    cluster.members = members()
    assert cluster.found() == Look(1, HTTP, "")


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"workers": [{}]}', b'{"workers": [1]}'])
def test_of_a_router_that_says_nothing_of_its_groups_none_is_heard(answer: bytes):
    assert unusable(["p0", "p0", "d0"], answer) == ["p0", "d0"]
