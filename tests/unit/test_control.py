"""`tandem control` when something else than a router's admin port answers: who that is, and what to give instead."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tandem.control import control
from tandem.core.errors import ConfigError
from tandem.kv import release
from tandem.runtime.health import Answers, Health
from tandem.trace import trace

HTML = b"HTTP/1.1 200 OK\r\nserver: nginx\r\ncontent-length: 15\r\n\r\n<html>hi</html>"
BARE = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
def rank() -> Iterator[str]:
    answers = Answers(lambda timeout_s: {"ready": True}, lambda rid, timeout_s, since_us: None, lambda timeout_s: b"")
    health = Health("127.0.0.1", 0, answers)
    yield f"http://{health.address}"
    health.close()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """Somebody who answers whatever comes with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(request.param)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def told(url: str) -> str:
    with pytest.raises(ConfigError) as refused:
        control("pause", "p0", url)
    return str(refused.value)


def test_a_rank_is_told_from_a_router(rank: str):
    where = f"--admin-url is '{rank}': a rank's own port answers there"
    assert told(rank) == f"{where}; give the admin_url of the router's READY line"


@pytest.mark.parametrize(
    ("answering", "who"),
    [(HTML, "nginx, with status 200"), (BARE, "something else, with status 404")],
    indirect=["answering"],
)
def test_another_server_is_named_and_its_page_is_not_shown(answering: str, who: str):
    said = told(answering)
    assert f"no router answers there but {who}; give the admin_url" in said
    assert "<html>" not in said


@pytest.mark.parametrize("answering", [b"-ERR unknown command 'POST'\r\n", b""], indirect=True)
def test_what_speaks_no_http_is_no_router(answering: str):
    assert f"--admin-url is '{answering}': no router answers there" in told(answering)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "127.0.0.1:80", "ftp://h:1", "http://:80", "http://h:99999", "http://[:1"]
)
def test_what_is_no_address_is_refused_before_anybody_is_asked(url: str):
    assert told(url) == f"--admin-url is {url!r}: give http://HOST:PORT, the admin_url of the READY line"


@pytest.mark.parametrize("name", ["", "p0/0"])
def test_what_is_no_name_is_not_blamed_on_the_address(name: str):
    for run in (
        lambda: control("pause", name, "http://127.0.0.1:1"),
        lambda: release(name, "p0", "http://127.0.0.1:1"),
        lambda: release("d0", name, "http://127.0.0.1:1"),
        lambda: trace(name, "http://127.0.0.1:1"),
    ):
        with pytest.raises(ConfigError, match=f"is {name!r}: give a name, and no slash"):
            run()
