"""Who is asked for a sign of life, and who counts as hung."""

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tandem.local.liveness import HUNG_LOOKS, LOADING_LOOKS, LOOK_S, Liveness, Question, http_question
from tandem.local.loop import Loop, Timer


class Rank:
    """A health port that answers as it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        rank = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                rank.asked += self.path == "/livez"
                self.send_response(rank.status)
                self.end_headers()
                self.wfile.write(b"it says 200 whatever its status is")

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.question = http_question(f"127.0.0.1:{self.server.server_address[1]}")
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


class Clockless(Loop):
    """Its one timer runs when the test says so, and it knows whether an answer is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = 0
        self.act: Callable[[], None]

    def watch(self, fd: int, act: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        self.watched += 1
        super().watch(fd, act, events)

    def forget(self, fd: int) -> None:
        self.watched -= 1
        super().forget(fd)

    def later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        assert delay_s == LOOK_S
        self.act = act
        return super().later(1e6, act)


class Watching:
    """Liveness, with looks at will."""

    def __init__(self) -> None:
        self.hung: list[tuple[str, float]] = []
        self.loop = Clockless()
        self.liveness = Liveness(self.loop, lambda name, patience_s: self.hung.append((name, patience_s)))
        self.liveness.start()

    def look(self, times: int) -> None:
        """Nobody has the time to answer in between."""
        for _ in range(times):
            self.loop.act()

    def look_and_hear(self, times: int) -> None:
        """Everybody has."""
        for _ in range(times):
            self.loop.act()
            while self.loop.watched:
                self.loop.round()


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def watching() -> Iterator[Watching]:
    made = Watching()
    made.liveness.watch("p0.0")
    yield made
    made.liveness.stop()
    made.loop.close()


@pytest.fixture
def silent() -> Iterator[Question]:
    """Like a process under SIGSTOP: the kernel takes the connection, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield http_question(f"127.0.0.1:{server.getsockname()[1]}")


def test_who_answers_is_asked_again_and_again_and_never_hung(watching: Watching, rank: Rank):
    watching.liveness.answers_at("p0.0", rank.question)
    watching.look_and_hear(2 * HUNG_LOOKS)
    assert rank.asked == 2 * HUNG_LOOKS
    assert watching.hung == []


def test_who_does_not_answer_is_hung_after_its_time_and_told_once(watching: Watching, silent: Question):
    watching.liveness.answers_at("p0.0", silent)
    watching.look(HUNG_LOOKS - 1)
    assert watching.hung == []
    watching.look(3 * HUNG_LOOKS)
    assert watching.hung == [("p0.0", HUNG_LOOKS * LOOK_S)]


def test_who_answers_that_its_loop_is_stuck_is_hung(watching: Watching, rank: Rank):
    rank.status = 503
    watching.liveness.answers_at("p0.0", rank.question)
    watching.look_and_hear(HUNG_LOOKS - 1)
    assert watching.hung == []
    watching.look_and_hear(1)
    assert [name for name, _ in watching.hung] == ["p0.0"]


def test_one_good_answer_is_enough_to_be_forgiven(watching: Watching, rank: Rank):
    watching.liveness.answers_at("p0.0", rank.question)
    for _ in range(3):
        rank.status = 503
        watching.look_and_hear(HUNG_LOOKS - 2)
        rank.status = 200
        watching.look_and_hear(1)
    assert watching.hung == []


def test_one_slow_answer_is_waited_for_and_not_asked_for_twice(watching: Watching, rank: Rank):
    watching.liveness.answers_at("p0.0", rank.question)
    watching.look(HUNG_LOOKS - 1)
    assert watching.loop.watched == 1
    while watching.loop.watched:
        watching.loop.round()
    watching.look_and_hear(HUNG_LOOKS)
    assert rank.asked == 1 + HUNG_LOOKS
    assert watching.hung == []


@pytest.mark.parametrize("address", [("127.0.0.1", 1), "/no/such/socket"])
def test_an_address_where_nobody_listens_is_no_answer(watching: Watching, address: tuple[str, int] | str):
    watching.liveness.answers_at("p0.0", Question(address, b"?", b"!"))
    watching.look_and_hear(HUNG_LOOKS)
    assert [name for name, _ in watching.hung] == ["p0.0"]


def test_who_has_no_address_yet_has_time_to_load(watching: Watching):
    watching.look(LOADING_LOOKS - 1)
    assert watching.hung == []
    watching.look(1)
    assert watching.hung == [("p0.0", LOADING_LOOKS * LOOK_S)]


def test_hearing_an_address_again_is_no_answer(watching: Watching, silent: Question):
    for _ in range(HUNG_LOOKS):
        watching.liveness.answers_at("p0.0", silent)
        watching.look(1)
    assert [name for name, _ in watching.hung] == ["p0.0"]


def test_a_new_address_is_a_new_beginning(watching: Watching, rank: Rank, silent: Question):
    for question in (silent, rank.question, silent, rank.question):
        watching.liveness.answers_at("p0.0", question)
        watching.look(HUNG_LOOKS - 1)
    assert watching.hung == []


def test_who_has_ended_is_not_watched_and_its_old_address_does_not_bring_it_back(watching: Watching, silent: Question):
    watching.liveness.answers_at("p0.0", silent)
    watching.look(1)
    watching.liveness.forget("p0.0")
    watching.liveness.answers_at("p0.0", silent)
    watching.look(LOADING_LOOKS)
    assert watching.hung == []
    assert watching.loop.watched == 0


def test_the_questions_of_all_kinds_of_addresses():
    assert http_question("127.0.0.1:80").address == ("127.0.0.1", 80)
    assert http_question("[::1]:80").address == ("::1", 80)
    assert http_question("[::1]:80").family == socket.AF_INET6
    assert Question("/run/registry.sock", b"", b"").family == socket.AF_UNIX
