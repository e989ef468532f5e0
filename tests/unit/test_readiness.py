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
from tandem.local.readiness import Looking, Ready, Waiting, Word, unusable

DEADLINE_S = 30.0
GROUPS = {"p0": RoleName.PREFILL, "p1": RoleName.PREFILL, "d0": RoleName.DECODE}


class Router:
    """A router's admin port: it takes requests, and has heard these groups."""

    def __init__(self) -> None:
        self.heard = ["p0", "d0"]
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                workers = [{"name": name, "usable": name in router.heard} for name in GROUPS]
                body = json.dumps({"workers": workers} if self.path == "/workers" else {"status": "ready"})
                self.send_response(200)
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


def members() -> list[Member]:
    return [
        Member(Group(role, name, (1,)), LEADER, 1, 1, "h", "f", "m", "", "", name, Limits(), epoch=Epoch(1))
        for name, role in GROUPS.items()
    ]


def test_a_cluster_is_ready_when_its_router_has_heard_every_group(router: Router):
    """Requests could go by p0 before; an order to p1 could not."""
    words: queue.SimpleQueue[Word] = queue.SimpleQueue()
    looking = Looking([f"{name}.0" for name in GROUPS], members)
    looking.router_at(router.url)
    looking.start(words.put)
    assert words.get(timeout=DEADLINE_S) == Waiting("the router to hear p1")
    router.heard.append("p1")
    assert words.get(timeout=DEADLINE_S) == Ready({f"{name}.0": name for name in GROUPS})


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"workers": [{}]}', b'{"workers": [1]}'])
def test_of_a_router_that_says_nothing_of_its_groups_none_is_heard(answer: bytes):
    assert unusable(["p0", "p0", "d0"], answer) == ["p0", "d0"]
