"""What the matrix, the storm and the soak would call wrong, and that the matrix leaves nothing out."""

import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.faults.cells import Cell, Result, all_cells
from bench.faults.matrix import GROUPS, RANKS, Kept, document, run, told
from bench.faults.processes import Held, name_of
from bench.faults.running import OUTCOME, held_by
from bench.faults.soak import Life
from bench.faults.streams import Asked, End, FakeRequests, Stream
from tandem.core.config import RoleName
from tandem.runtime.drills import Point

ASKED = Asked("m", (1, 2), 3, "abc")
END_S = 30.0
DONE = b"data: [DONE]\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def error(code: str) -> bytes:
    return b"data: " + json.dumps({"error": {"code": code}}).encode() + b"\n\n"


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that answers everything with this, and hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


WHOLE = piece("a") + piece("bc", "length")
ANSWERS = [
    (200, WHOLE + DONE, End.RIGHT),
    (200, piece("a") + piece("xc", "length") + DONE, End.WRONG),
    (200, piece("a") + piece("b", "length") + DONE, End.WRONG),  # too short
    (200, piece("abcd", "length") + DONE, End.WRONG),  # too long
    (200, piece("abc") + DONE, End.WRONG),  # nobody said that it was finished
    (200, piece("x") + error("group_lost") + DONE, End.WRONG),  # no error excuses another text
    (200, piece("a") + error("group_lost") + DONE, End.ERROR),
    (503, json.dumps({"error": {"code": "no_decode"}}).encode(), End.ERROR),
    (200, piece("a"), End.CUT),
    (200, WHOLE, End.CUT),
]


@pytest.mark.parametrize(("status", "body", "end"), ANSWERS)
def test_an_answer_is_held_against_its_reference(status: int, body: bytes, end: End) -> None:
    with answering(status, body) as url:
        assert Stream(url, ASKED).wait(END_S).end is end


def test_nobody_there_is_a_cut_and_a_client_that_leaves_is_told_apart() -> None:
    with answering(200, WHOLE + DONE) as url:
        assert Stream(url, ASKED, leave_after=1).wait(END_S).end is End.LEFT
        assert Stream(url, ASKED, leave_after=0).wait(END_S).end is End.LEFT
    assert Stream(url, ASKED).wait(END_S).end is End.CUT


def test_prompts_come_again_with_the_same_answers_and_other_salts() -> None:
    ask, rng = FakeRequests(2, 1, 9), random.Random(1)
    first, again = ask(rng, 9), ask(rng, 9)
    assert (first.prompt, first.text) == (again.prompt, again.text)
    assert first.salt != again.salt


# the matrix


def test_every_rank_meets_every_point_and_signal_once() -> None:
    cells = all_cells(RANKS, GROUPS)
    kinds = Counter((cell.role, cell.rank, cell.point, cell.signal) for cell in cells)
    assert len(kinds) == len(cells) == 2 * RANKS * len(Point) * 2
    assert len(cells) >= 90
    assert {cell.group for cell in cells} == {"p0", "p1", "d0", "d1"}


def test_nobody_is_struck_twice_in_a_row() -> None:
    assert all(one.victim != other.victim for one, other in pairwise(all_cells(RANKS, GROUPS)))


def test_the_document_says_what_failed() -> None:
    cells = all_cells(RANKS, GROUPS)[:2]
    results = [Result(cells[0], None, 3, {"right": 4}, 1.5), Result(cells[1], None, 0, {}, 0.0, "not at rest")]
    text = document(results, "shm")
    assert "| prefill | 0 | queue | SIGKILL | 4 right | 1.5 |" in text
    assert "| decode | 0 | queue | SIGKILL | FAILED: not at rest | 0.0 |" in text
    assert "1 of 2 hold" in text
    assert told(results[1]).startswith("not hit")


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    first, second = all_cells(RANKS, GROUPS)[:2]
    path = tmp_path / "results"
    Kept(path).add(Result(first, None, 16, {"right": 16}, 1.5))
    kept = Kept(path)
    kept.add(Result(second, None, 0, {}, 0.0, "not at rest"))
    assert run([second, first], "shm", 1, Kept(path)) == [kept.results[second], kept.results[first]]


def test_a_cell_is_called_by_its_rank() -> None:
    assert str(Cell(RoleName.DECODE, "d1", 2, Point.LAYER, "SIGSTOP")) == "d1.2 mid layer SIGSTOP"


# processes and rest


COMMANDS = [
    (b"python\0-m\0tandem.cli\0decode\0--cluster=up\0--group=d1\0--rank=2\0--pp-size=3\0", "d1.2"),
    (b"python\0-m\0tandem.cli\0router\0--port=0\0", "router"),
    (b"/usr/bin/valkey-server unixsocket:/run/registry.sock\0", "registry"),
    (b"python\0-I\0-S\0janitor.py\0", ""),
]


@pytest.mark.parametrize(("command", "name"), COMMANDS)
def test_a_process_is_known_by_its_command_line(command: bytes, name: str) -> None:
    assert name_of(command) == name


RESTS = {"ready": True, "rooms": 0, "sessions": 0, "facts": 0, "ticks_in_flight": 0}
PAGES = {"total": 9, "free": 7, "cached": 2, "quarantined": 0}


def test_a_rank_is_at_rest_when_every_page_is_back() -> None:
    assert held_by({**RESTS, "pages": PAGES}) == {}
    assert held_by({**RESTS, "pages": {**PAGES, "free": 6, "quarantined": 1}}).keys() == {"pages"}
    assert held_by({**RESTS, "rooms": 1, "pages": PAGES}) == {"rooms": 1}
    assert held_by({"ready": False, "waiting_for": "rank 1"}) == {"waiting_for": "rank 1"}


def test_the_routers_last_word_on_a_request_is_found() -> None:
    line = "12:38:03.067 INFO    router request 50039fdaa960ddee on p1 and d1: 5 + 275 tokens, client_gone\n"
    found = OUTCOME.search(line)
    assert found is not None
    assert found.groups() == ("50039fdaa960ddee", "client_gone")
    assert OUTCOME.search("router request 50039fdaa960ddee.2 goes on after 9 tokens on p0 and d1: d0 was lost") is None


@pytest.mark.parametrize(
    ("last", "grew"), [(Held(150, 40, 9), False), (Held(300, 40, 9), True), (Held(100, 90, 9), True)]
)
def test_a_process_that_holds_much_more_than_at_first_has_grown(last: Held, grew: bool) -> None:
    assert Life("p0.0", Held(100, 40, 9), last).grew is grew
