"""What clients get when something is wrong: always OpenAI's shape, always a code, never a traceback."""

import json
import socket

import openai
import pytest
from waiting import DEADLINE_S

from tandem.core.config import Limits
from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def body(**fields) -> dict:
    return {"model": "tiny", "messages": HI, **fields}


def check(answer, status: int, code: str, param: str | None = None) -> dict:
    got, headers, payload = answer
    error = json.loads(payload)["error"]
    assert (got, error["code"], error["param"]) == (status, code, param), error
    assert set(error) == {"message", "type", "code", "param"}
    assert headers["x-tandem-error-code"] == code
    assert len(headers["x-request-id"]) == 16
    assert "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"nul",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "\xff": 1}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "unknown": "\xff"}',
        b'{"model": "tiny", "temperature": NaN, "messages": []}',
        b'{"model": "tiny", "temperature": Infinity, "messages": []}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "x": ' + b"[" * 65 + b"]" * 65 + b"}",
        b'{"x": ' + b"[" * 200_000,
        b"\x00\x01\x02" * 5000,
    ],
)
def test_what_is_no_json_is_refused(serving, payload):
    check(serving.post(CHAT, payload), 400, "invalid_json")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "invalid_value", "messages"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"n": 9}, "invalid_value", "n"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"max_tokens": True}, "invalid_type", "max_tokens"),
        ({"presence_penalty": 2.5}, "invalid_value", "presence_penalty"),
        ({"max_tokens": 10**40}, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 8192}, "context_length_exceeded", "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "context_length_exceeded", "messages"),
        ({"model": 5}, "invalid_type", "model"),
    ],
)
def test_a_bad_field_is_named(serving, fields, code, param):
    check(serving.post(CHAT, body(**fields)), 400, code, param)


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 4300, "1e400"])
def test_a_number_beyond_every_type_is_no_bug_of_ours(serving, number):
    payload = b'{"model": "tiny", "prompt": "hi", "%s": %s}'
    answer = serving.post("/v1/completions", payload % (b"best_of", number.encode()))
    check(answer, 400, "unsupported_parameter", "best_of")
    status, headers, _ = serving.post("/v1/completions", payload % (b"top_k", number.encode()))
    assert (status, headers["x-tandem-error-code"]) == (400, "invalid_value")
    status, headers, _ = serving.post("/v1/completions", payload % (b"max_tokens", number.encode()))
    assert (status, headers["x-tandem-error-code"]) in [(400, "context_length_exceeded"), (400, "invalid_value")]


def test_the_numbers_of_an_over_long_request_are_told(serving):
    error = check(serving.post(CHAT, body(max_tokens=9000)), 400, "context_length_exceeded", "max_tokens")
    assert "8192" in error["message"]
    assert "9009" in error["message"]
    assert "9 in the messages" in error["message"]


def test_a_request_larger_than_every_page_is_refused(start):
    serving = start(limits=Limits(num_pages=4, page_size=16))
    check(serving.post(CHAT, body(max_tokens=60)), 400, "context_length_exceeded", "max_tokens")
    assert serving.post(CHAT, body(max_tokens=56))[0] == 200, "the last token's KV is never kept"
    assert serving.post(CHAT, body())[0] == 200, "by default it takes what fits"


def test_another_model_does_not_exist(serving):
    check(serving.post(CHAT, body(model="huge")), 404, "model_not_found", "model")
    with serving.client() as client, pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/huge")


def test_unknown_paths_and_methods_have_the_same_shape(serving):
    check(serving.post("/v1/nothing", body()), 404, "not_found")
    answer = serving.raw(f"GET {CHAT} HTTP/1.1\nhost: x\nconnection: close\n\n")
    head, _, payload = answer.partition(b"\r\n\r\n")
    assert b" 405 " in head.split(b"\r\n")[0]
    assert b"allow: POST" in head
    error = json.loads(payload)["error"]
    assert (error["code"], error["message"]) == ("method_not_allowed", f"{CHAT} takes POST, not GET")


def test_only_json_is_read(serving):
    check(serving.post(CHAT, body(), **{"content-type": "text/plain"}), 415, "unsupported_media_type")


def test_a_large_body_is_refused_by_its_announced_length(serving, kinds):
    head = f"POST {CHAT} HTTP/1.1\nhost: x\ncontent-type: application/json\ncontent-length: 5000000\n\n"
    check(kinds.parse(serving.raw(head)), 413, "request_too_large")


def test_a_large_body_is_refused_without_an_announced_length(serving, kinds):
    """The router stops reading: it answers although the body never ends."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(serving.address, timeout=DEADLINE_S) as line:
        line.sendall(head.encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(4 * 1024 * 1024 // 0x10000 + 64):
                line.sendall(chunk)
        except ConnectionError:
            pass  # it has hung up already; what it said can still be read
        check(kinds.parse(kinds.read_all(line)), 413, "request_too_large")


def test_a_large_body_within_the_limit_is_read(serving, kinds):
    ids = [97] * 8000
    answer = serving.post("/v1/completions", {"model": "tiny", "prompt": ids, "x": "y" * 3_500_000, "max_tokens": 2})
    assert answer[0] == 200
    assert len(serving.double.wait_for(kinds.submit)[0].work.prompt) == 8000


def test_a_body_that_does_not_come_is_given_up(start, kinds):
    serving = start(body_timeout_s=0.2)
    head = f"POST {CHAT} HTTP/1.1\nhost: x\ncontent-type: application/json\ncontent-length: 100\n\n"
    check(kinds.parse(serving.raw(head, b"{")), 408, "body_timeout")


@pytest.mark.parametrize("head", ["not http\n\n", "GET / HTTP/1.1\nx: " + "y" * 20_000 + "\n\n"])
def test_what_is_no_http_gets_the_same_shape(serving, kinds, head):
    check(kinds.parse(serving.raw(head)), 400, "invalid_http")


def test_a_bug_of_ours_has_a_fixed_text(start, caplog):
    serving = start()

    def bug() -> list:
        raise RuntimeError("secret detail")

    serving.router.service.membership.usable = bug
    error = check(serving.post(CHAT, body()), 500, "internal_error")
    assert "secret" not in error["message"]
    assert "secret detail" in caplog.text
    del serving.router.service.membership.usable


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (Reason.QUEUE_FULL, 429, "queue_full"),
        (Reason.DEADLINE, 504, "deadline_exceeded"),
        (Reason.TOO_LARGE, 400, "context_length_exceeded"),
        (Reason.TRANSFER_FAILED, 502, "kv_transfer_failed"),
        (Reason.LENGTH, 502, "protocol_violation"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_group_that_refuses_is_quoted(serving, kinds, reason, status, code, stream):
    serving.double.play(refuse={kinds.prefill: reason})
    check(serving.post(CHAT, body(stream=stream)), status, code)
    assert {cancel.reason for cancel in serving.double.wait_for(kinds.cancel, kinds.decode)} == {Reason.PEER_ENDED}


def test_the_real_reason_wins_over_peer_ended(serving, kinds):
    serving.double.play(refuse={kinds.decode: Reason.PEER_ENDED, kinds.prefill: Reason.QUEUE_FULL})
    answer = serving.post(CHAT, body())
    check(answer, 429, "queue_full")
    assert answer[1]["retry-after"] == "1"


def test_peer_ended_alone_is_told_after_a_while(serving, kinds):
    serving.double.play(refuse={kinds.decode: Reason.PEER_ENDED})
    error = check(serving.post(CHAT, body()), 502, "group_lost")
    assert "d0" in error["message"]


def test_a_failure_in_the_middle_is_an_event_and_not_a_cut(serving, kinds):
    serving.double.play(hold_at=4, fail_after={kinds.decode: (5, Reason.DEADLINE)})
    with serving.client() as client:
        stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
        chunks = [next(stream)]
        serving.double.go()
        with pytest.raises(openai.APIError) as raised:
            chunks.extend(stream)
    assert raised.value.code == "deadline_exceeded"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


def test_a_failure_in_the_middle_of_an_unstreamed_answer_has_a_status(serving, kinds):
    serving.double.play(fail_after={kinds.decode: (5, Reason.DEADLINE)})
    check(serving.post(CHAT, body()), 504, "deadline_exceeded")


def test_a_gap_in_the_tokens_or_an_unknown_token_is_no_text(serving, kinds):
    serving.double.play(ids=[65, 300, 66])
    error = check(serving.post(CHAT, body()), 502, "protocol_violation")
    assert "300" in error["message"]


def test_more_requests_than_allowed_are_told_to_come_back(start, kinds, until):
    serving = start(max_concurrent_requests=1, queue_size=0)
    serving.double.play(hold_at=0)
    with serving.open_stream():
        serving.double.wait_for(kinds.submit, count=2)
        answer = serving.post(CHAT, body())
        check(answer, 429, "queue_full")
        assert answer[1]["retry-after"] == "1"
    serving.wait_at_rest()
    serving.double.play()
    assert serving.post(CHAT, body())[0] == 200
