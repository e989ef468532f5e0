"""What one client may cost: pipelining, heads and bodies that never end, and refusals that it can still read."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest
from waiting import DEADLINE_S, eventually

from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{{".encode()


def connect(serving) -> socket.socket:
    return socket.create_connection(serving.address, timeout=DEADLINE_S)


def all_taken(line: socket.socket, piece: bytes, pieces: int) -> bool:
    """Whether so many pieces can be sent."""
    try:
        for _ in range(pieces):
            line.sendall(piece)
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize("stream", [False, True])
def test_a_pipelining_client_that_leaves_is_noticed(serving, kinds, stream, caplog):
    serving.double.play(hold_at=3)
    with serving.open_stream(stream=stream) as line:
        serving.double.wait_for(kinds.submit, count=2)
        line.sendall(GET + GET)
    assert {cancel.reason for cancel in serving.double.wait_for(kinds.cancel, count=2)} == {Reason.CLIENT_GONE}
    serving.wait_at_rest()
    assert "Traceback" not in caplog.text


def test_a_second_request_before_the_first_ones_answer_is_not_read(serving, kinds):
    serving.double.play(hold_at=3)
    with serving.open_stream(stream=False) as line:
        serving.double.wait_for(kinds.submit, count=2)
        line.sendall(GET)
        serving.double.go()
        answer = kinds.read_all(line)
    assert answer.count(b"HTTP/1.1 ") == 1, "the connection closes after the first answer"
    assert b"hello world" in answer
    assert b"connection: close" in answer


def test_one_request_after_the_other_keeps_the_connection(serving, kinds):
    with connect(serving) as line:
        for _ in range(3):
            line.sendall(b"\r\n" + GET)
            answer = kinds.read_one(line)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" not in answer


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
"""What Java's client puts into the head of its first request."""
ASKED = json.dumps(BODY).encode()
OF_LENGTH = b"content-length: %d\r\n\r\n%b" % (len(ASKED), ASKED)
IN_CHUNKS = b"transfer-encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    ASKED[:5],
    len(ASKED) - 5,
    ASKED[5:],
)


@pytest.mark.parametrize("body", [OF_LENGTH, IN_CHUNKS])
@pytest.mark.parametrize("step", [10_000, 1])
def test_a_client_that_offers_another_protocol_is_answered_in_this_one(serving, kinds, body, step: int):
    request = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n".encode() + UPGRADE + body
    with connect(serving) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sent in (request, GET.replace(b"\r\n\r\n", b"\r\n" + UPGRADE + b"\r\n"), request):
            for at in range(0, len(sent), step):
                line.sendall(sent[at : at + step])
            answer = kinds.read_one(line)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert b"hello world" in answer or sent is not request


def test_what_follows_the_body_of_such_a_request_is_no_part_of_it(serving, kinds):
    with connect(serving) as line:
        line.sendall(f"POST {CHAT} HTTP/1.1\r\n".encode() + UPGRADE + b"content-length: 3\r\n\r\n{}x" + GET)
        answer = kinds.read_all(line)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows is no part of it, and is not read"


def test_a_client_that_floods_a_connection_behind_its_request_is_cut_off(serving, kinds):
    serving.double.play(hold_at=3)
    with serving.open_stream(stream=False) as line:
        serving.double.wait_for(kinds.submit, count=2)
        assert not all_taken(line, GET * 1000, 2000)
    serving.wait_at_rest()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: ",
        b"GET /",
        f"POST {CHAT} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;".encode(),
        f"POST {CHAT} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ".encode(),
    ],
)
def test_a_line_that_never_ends_is_refused(serving, kinds, head):
    with connect(serving) as line:
        line.sendall(head)
        line.sendall(b"y" * 400_000)  # more than the loop hands over at once
        status, headers, payload = kinds.parse(kinds.read_all(line))
        assert (status, headers["connection"]) == (400, "close")
        assert b"invalid_http" in payload
        assert not all_taken(line, b"y" * 1_000_000, 100), "nor is it taken in for ever"


def test_many_short_headers_are_too_many(serving, kinds):
    status, _, payload = kinds.parse(serving.raw("GET / HTTP/1.1\n" + "a: \n" * 4000 + "\n"))
    assert status == 400
    assert b"invalid_http" in payload


@pytest.mark.parametrize("before", [b"", GET])
def test_a_head_that_does_not_come_closes_the_connection(serving, kinds, monkeypatch, before):
    monkeypatch.setattr("router.connection.HEAD_S", 0.3)
    with connect(serving) as line:
        line.sendall(before)
        assert not before or kinds.read_one(line).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET / HTTP/1.1\r\nx")
        assert kinds.read_all(line) == b""


def test_half_sent_bodies_take_nobody_elses_place(start):
    serving = start(max_concurrent_requests=2)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(serving)).sendall(HALF)
        assert serving.get("/readyz")[0] == 200
        serving.wait_coming(4)
        assert serving.post(CHAT, BODY)[0] == 200
    serving.wait_at_rest()


def test_half_sent_bodies_have_a_limit_of_their_own(start):
    serving = start(max_bodies_coming=1)
    with connect(serving) as line:
        line.sendall(HALF)
        serving.wait_coming(1)
        status, headers, _ = serving.post(CHAT, BODY)
        assert (status, headers["retry-after"]) == (429, "1")
    serving.wait_at_rest()
    assert serving.post(CHAT, BODY)[0] == 200


def test_the_refusal_of_a_large_body_can_be_read_after_sending_all_of_it(serving, kinds):
    """As most clients do: they look at the answer when they are through."""
    payload = b" " * 10_000_000
    for _ in range(3):
        status, headers, body = serving.post(CHAT, payload)
        assert (status, headers["connection"]) == (413, "close")
        assert b"request_too_large" in body


def test_a_body_without_end_is_not_taken_in_for_ever(serving):
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 900000000\r\n\r\n".encode()
    with connect(serving) as line:
        line.sendall(head)
        assert not all_taken(line, b" " * 1_000_000, 900)


LOOKS = 2
"""At what is left of an answer: the first finds how much, the second whether that has become less."""
LONG = json.dumps({"model": "tiny", "prompt": ["x" * 4000] * 100, "echo": True, "max_tokens": 1}).encode()
"""What is told again is more than all buffers hold."""


@contextlib.contextmanager
def unread(
    serving, kinds, monkeypatch, connection: str, unread_s: float = 0.5
) -> Iterator[tuple[socket.socket, list[int | None], list[int | None]]]:
    """A connection with an answer that nobody waits for any more, as all of it was written.

    With it, when it was looked after, and whether it was cut off: from its beginning on, as its time may be over before
    the test goes on.
    """
    monkeypatch.setattr("router.connection.HEAD_S", 0.1)
    monkeypatch.setattr("router.connection.UNREAD_S", unread_s)
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(serving.address)
        line.settimeout(DEADLINE_S)
        looks, lost = (kinds.calls_of(monkeypatch, line, method) for method in ("_on_time", "connection_lost"))
        head = f"POST /v1/completions HTTP/1.1\r\nconnection: {connection}\r\ncontent-length: {len(LONG)}\r\n\r\n"
        line.sendall(head.encode() + LONG)
        serving.double.wait_for(kinds.submit, count=100)
        serving.wait_at_rest()
        yield line, looks, lost


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_never_reads_its_answer_is_cut_off(serving, kinds, monkeypatch, connection: str):
    with unread(serving, kinds, monkeypatch, connection) as (_, _, lost):
        eventually(lambda: lost, "it is cut off")


def test_a_client_that_reads_slowly_gets_all_of_its_answer(serving, kinds, monkeypatch):
    with unread(serving, kinds, monkeypatch, "keep-alive", unread_s=3.0) as (line, looks, _):
        data = b""
        while sum(left is not None for left in looks) < LOOKS and (piece := line.recv(1024)):
            data += piece
            time.sleep(0.02)
        assert piece, "it was looked whether anything more had been read"
        data += kinds.read_all(line)
    assert json.loads(kinds.parse(data)[2])["usage"]["completion_tokens"] == 100
