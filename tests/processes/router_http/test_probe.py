"""What operators can do to and see of requests: health by a token, aborts, ids of the client's own, and timing."""

import json
import re
import urllib.error
import urllib.request

import openai
import pytest

from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def abort(serving, name: str) -> tuple[int, dict]:
    request = urllib.request.Request(f"{serving.admin_url}/abort/{name}", method="POST")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_health_is_told_by_a_token_of_each_group(serving, kinds):
    status, told = serving.get("/health_generate", admin=True)
    assert (status, told["status"], told["groups"]) == (200, "ok", ["p0", "d0"])
    works = {group: serving.double.wait_for(kinds.submit, group)[0].work for group in (kinds.prefill, kinds.decode)}
    assert {work.max_tokens for work in works.values()} == {2}
    assert serving.get("/health_generate")[0] == 404, "the data port does not tell"


def test_health_that_cannot_be_told_has_its_reason(start, kinds, serving):
    status, told = start(registered=False).get("/health_generate", admin=True)
    assert (status, told["error"]["code"]) == (503, "no_prefill")
    serving.double.play(refuse={kinds.decode: Reason.DEADLINE})
    status, told = serving.get("/health_generate", admin=True)
    assert (status, told["error"]["code"]) == (504, "deadline_exceeded")


def test_health_has_a_deadline(start, monkeypatch):
    monkeypatch.setattr("router.probe.PROBE_S", 0.2)
    serving = start()
    serving.double.play(hold_at=1)
    status, told = serving.get("/health_generate", admin=True)
    assert (status, told["error"]["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
def test_an_operator_ends_a_request_with_all_its_choices(serving, kinds, prefix):
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, n=2, stream=True)
        first = next(stream)
        rid = first.id.removeprefix("chatcmpl-")
        assert abort(serving, prefix + rid) == (200, {"request_id": prefix + rid, "aborted": 2})
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    assert raised.value.code == "request_aborted"
    cancels = serving.double.wait_for(kinds.cancel, kinds.decode, 2)
    assert [cancel.reason for cancel in cancels] == [Reason.ABORTED, Reason.ABORTED], (
        "traces tell it from a client's end"
    )
    assert abort(serving, rid)[0] == 404, "it is over"


def test_only_the_exact_id_aborts(serving, until):
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, n=2, stream=True)
        rid = next(stream).id.removeprefix("chatcmpl-")
        second = f"{int(rid, 16) + 1:016x}"
        names = (second, f"{int(rid, 16) - 1:016x}", "0" * 16, f"{rid}.1")
        assert [abort(serving, name)[0] for name in names] == [404] * 4
        assert [abort(serving, name)[0] for name in (rid[:8], f"{rid}0", "x")] == [400] * 3
        serving.double.go()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices[0].index == 0)
    assert text == "hello world"


def test_the_clients_own_id_is_a_label(serving, caplog):
    caplog.set_level("INFO", "tandem.router")
    status, headers, _ = serving.post(CHAT, BODY, **{"x-request-id": "Order-17/3"})
    assert (status, headers["x-client-request-id"]) == (200, "order-17/3"), "parse() has lowered it"
    assert re.fullmatch("[0-9a-f]{16}", headers["x-request-id"])
    serving.wait_at_rest()
    assert "'Order-17/3'" in caplog.text
    status, headers, _ = serving.post(CHAT, {**BODY, "model": "huge"}, **{"x-request-id": "a"})
    assert (status, headers["x-client-request-id"]) == (404, "a"), "errors have it too"


@pytest.mark.parametrize("label", ["x" * 129, "two words", "\u00e9", ""])
def test_what_is_no_plain_word_is_no_label(serving, label):
    _, headers, _ = serving.post(CHAT, BODY, **{"x-request-id": label})
    assert "x-client-request-id" not in headers


def parts(headers: dict[str, str]) -> list[str]:
    """Names of the parts, each with a time of its own."""
    found = [re.fullmatch(r"([a-z-]+);dur=[0-9]+\.[0-9]", part) for part in headers["server-timing"].split(", ")]
    assert all(found), headers["server-timing"]
    return [match[1] for match in found]


def test_a_whole_answer_tells_all_its_times(serving):
    assert parts(serving.post(CHAT, BODY)[1]) == ["queue", "prefill", "transfer", "first-token"]
    assert parts(serving.post(CHAT, {**BODY, "max_tokens": 1})[1]) == ["queue", "prefill", "first-token"]


def test_a_stream_tells_what_is_known_at_its_first_byte(serving, kinds):
    serving.double.play(hold_at=1)
    with serving.open_stream() as line:
        head = kinds.read_head(line)
        serving.double.go()
    told = parts(kinds.parse(head)[1])  # decode may have said its first word before the head was written
    assert [part for part in told if part != "transfer"] == ["queue", "prefill", "first-token"]


def test_a_stream_that_begins_with_a_ping_knows_no_times(start, kinds):
    serving = start(ping_s=0.05)
    serving.double.play(hold_at=0)
    with serving.open_stream() as line:
        assert parts(kinds.parse(kinds.read_head(line))[1]) == ["queue"]
