"""The conversation of two doctors: what goes wrong is one sentence, on both ends, in time."""

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from tandem.core.messages import PROTOCOL
from tandem.doctor.link import NAME, Caller, Listener, Lost, opened, reach
from tandem.doctor.words import Ping, Pong, Tell, Told
from tandem.runtime.links import tcp_address

SECRET, OTHER = b"a cluster secret", b"another secret, too"
HOST = "127.0.0.1"
WAIT_S = 20.0

Run = Callable[..., "Future[Any]"]


@pytest.fixture
def beside() -> Iterator[Run]:
    """Runs a call in another thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


@pytest.fixture
def directory(tmp_path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path)


@pytest.fixture
def listener(directory: str) -> Iterator[Listener]:
    with opened(b"") as sockets, contextlib.closing(Listener(sockets, directory)) as made:
        yield made


@contextlib.contextmanager
def calling(directory: str) -> Iterator[Caller]:
    with opened(b"") as sockets, contextlib.closing(Caller(sockets, f"ipc://{directory}/{NAME}", "the peer")) as caller:
        yield caller
        caller.leave()


@pytest.fixture
def caller(directory: str, listener: Listener, beside: Run) -> Iterator[Caller]:
    """One that has been let in."""
    with calling(directory) as made:
        heard = beside(listener.open, WAIT_S)
        made.open()
        heard.result()
        yield made


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return server.getsockname()[1]


def test_a_question_gets_its_answer(caller: Caller, listener: Listener, beside: Run):
    asked = beside(caller.ask, Ping(), Pong)
    assert listener.hear(WAIT_S) == Ping()
    listener.answer(Pong(7))
    assert asked.result() == Pong(7)


def test_another_protocol_version_is_named_on_both_ends(directory: str, listener: Listener, beside: Run):
    heard = beside(listener.open, WAIT_S, PROTOCOL + 1)
    with calling(directory) as caller:
        with pytest.raises(
            Lost, match=f"the peer has .* protocol {PROTOCOL + 1}, this host .* with {PROTOCOL}: install"
        ):
            caller.open()
        with pytest.raises(
            Lost, match=f"the caller has .* protocol {PROTOCOL}, this host .* with {PROTOCOL + 1}: install"
        ):
            heard.result()


def test_another_secret_is_named_on_both_ends(beside: Run):
    port = free_port()
    with opened(SECRET) as ours, opened(OTHER) as theirs, contextlib.closing(Listener(ours, HOST, port)) as listener:
        heard = beside(listener.open, 1.0)
        caller = Caller(theirs, tcp_address(HOST, port), f"{HOST}:{port}")
        with pytest.raises(Lost, match=f"{HOST}:{port} accepts connections but .* the same --cluster-secret-file"):
            caller.open(0.5)
        with pytest.raises(Lost, match="nobody with the same cluster secret called in 1 s"):
            heard.result()
        caller.close()


def test_the_same_secret_lets_in(beside: Run):
    port = free_port()
    with opened(SECRET) as ours, opened(SECRET) as theirs, contextlib.closing(Listener(ours, HOST, port)) as listener:
        heard = beside(listener.open, WAIT_S)
        with contextlib.closing(Caller(theirs, tcp_address(HOST, port), "the peer")) as caller:
            caller.open()
            heard.result()
            caller.leave()


def test_a_silent_listener_is_noticed(caller: Caller):
    with pytest.raises(Lost, match=r"the peer gave no answer to Ping in 0\.2 s"):
        caller.ask(Ping(), Pong, 0.2)


def test_a_silent_caller_is_noticed(caller: Caller, listener: Listener):
    with pytest.raises(Lost, match=r"the caller said nothing for 0\.2 s"):
        listener.hear(0.2)


def test_an_answer_to_another_question_is_named(caller: Caller, listener: Listener, beside: Run):
    asked = beside(caller.ask, Ping(), Pong)
    listener.hear(WAIT_S)
    listener.answer(Told())
    with pytest.raises(Lost, match="the peer answered Told to Ping"):
        asked.result()


def test_a_second_caller_is_declined(caller: Caller, listener: Listener, directory: str, beside: Run):
    heard = beside(listener.hear, WAIT_S)
    with calling(directory) as second, pytest.raises(Lost, match="the peer declines: it talks to another caller"):
        second.open()
    caller.say(Ping())
    assert heard.result() == Ping()


def test_who_leaves_says_why(caller: Caller, listener: Listener):
    caller.leave("it was interrupted")
    with pytest.raises(Lost, match="the caller left: it was interrupted"):
        listener.hear(WAIT_S)


def test_the_listener_closes_when_the_caller_has_left(caller: Caller, listener: Listener, beside: Run):
    """In one of a hundred runs the last answer was lost when it closed at once."""
    asked = beside(caller.ask, Tell(()), Told)
    listener.hear(WAIT_S)
    listener.answer(Told())
    assert asked.result() == Told()
    closed = beside(listener.close)
    wait([closed], 0.3)
    assert not closed.done()
    caller.leave()
    closed.result()


def test_where_nobody_listens_the_address_is_named():
    port = free_port()
    with pytest.raises(
        Lost, match=rf"nobody answers at {HOST} port {port} in 0\.2 s .*refused.*--listen {HOST}:{port}"
    ):
        reach(HOST, port, 0.2)


@pytest.mark.parametrize("host", ["no such host", "..", "a" * 64])
def test_a_host_that_is_not_there_is_named(host: str):
    with pytest.raises(Lost, match=f"{re.escape(host)} is no host that can be found"):
        reach(host, 1, WAIT_S)


def test_reaching_says_which_addresses_are_used():
    with socket.create_server((HOST, 0)) as server:
        assert reach("localhost", server.getsockname()[1], WAIT_S) == (HOST, HOST)
