"""What a hostile client may try at the port for clients, and what the logs say of anybody's requests."""

import json
import logging
import socket
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S

from router.auth import Doors
from router.keystore import KeyStore
from router.tenants import one_key

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
SECRET = "xyzzy-prompt-of-a-patient"
REPLY = "plugh-answer-to-it"
KEY = "sk-a-key-that-nobody-may-read"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **fields}


def code_of(answer) -> tuple[int, str | None]:
    status, _, payload = answer
    return status, json.loads(payload)["error"]["code"] if status != 200 else None


NAMED = {
    "bootstrap_host": "10.0.0.1",
    "bootstrap_port": 8998,
    "bootstrap_room": 7,
    "room": 7,
    "rid": "0000000000000007",
    "request_id": "7",
    "peer": "p9",
    "group": "p9",
    "route": ["p9", "d9"],
    "host": "10.0.0.1",
    "port": 1,
    "url": "http://10.0.0.1/",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 1},
    "data_parallel_rank": 3,
    "attempt": 9,
    "tenant": "another",
    "salt": "another",
    "age_ms": 10**9,
    "generated": 5,
}


@pytest.mark.parametrize("name", NAMED)
def test_a_client_cannot_name_where_its_request_goes(serving, kinds, name: str):
    def works(**fields: Any) -> list[Any]:
        serving.double.play()
        assert code_of(serving.post(CHAT, chat(temperature=0, **fields))) == (200, None)
        submits = serving.double.wait_for(kinds.submit, count=2)
        return sorted(((submit.work, submit.work.room) for submit in submits), key=lambda pair: pair[0].peer)

    usual, tried = works(), works(**{name: NAMED[name]})
    assert [room.attempt for _, room in tried] == [1, 1]
    assert not {room.rid for _, room in tried} & {7, *(room.rid for _, room in usual)}
    for (before, _), (after, _) in zip(usual, tried, strict=True):
        told = ("peer", "salt", "prompt", "generated", "max_tokens", "priority")
        assert [getattr(before, name) for name in told] == [getattr(after, name) for name in told]
        assert after.age_ms < 10**6


def test_ids_are_the_servers_and_do_not_follow_each_other(serving):
    label = "0000000000000007"
    ids = []
    for _ in range(8):
        payload = serving.post(CHAT, chat(), **{"x-request-id": label})[2]
        ids.append(json.loads(payload)["id"])
        assert not ids[-1].endswith(label)
    numbers = sorted(int(each.removeprefix("chatcmpl-"), 16) for each in ids)
    assert len(set(numbers)) == 8
    assert min(b - a for a, b in pairwise(numbers)) > 1000


@pytest.fixture
def trap():
    """A server that nobody is to ask anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        yield listener


PARTS = {
    "an image": {"type": "image_url", "image_url": {"url": "URL"}},
    "a sound": {"type": "input_audio", "input_audio": {"data": "URL", "format": "wav"}},
    "a film": {"type": "video_url", "video_url": {"url": "URL"}},
    "a file": {"type": "file", "file": {"file_url": "URL"}},
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_no_url_of_a_client_is_ever_fetched(serving, trap, part: dict[str, Any]):
    url = f"http://127.0.0.1:{trap.getsockname()[1]}/cat.png"
    content = json.loads(json.dumps([{"type": "text", "text": "hi"}, part]).replace("URL", url))
    status, code = code_of(serving.post(CHAT, chat(messages=[{"role": "user", "content": content}])))
    assert status == 400, code
    with pytest.raises(TimeoutError):
        trap.accept()


CAPS = {
    "choices": chat(n=9),
    "messages": chat(messages=[{"role": "user", "content": "hi"}] * 1025),
    "stops": chat(stop=["x"] * 17),
    "a long stop": chat(stop="x" * 257),
    "log-probabilities": chat(logprobs=True, top_logprobs=21),
    "nesting": chat(metadata=json.loads("[" * 65 + "]" * 65)),
    "a grammar": chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object", "description": "x" * 90_000}},
        }
    ),
    "biases": chat(logit_bias={str(token): 1 for token in range(1025)}),
    "a salt": chat(cache_salt="x" * 257),
}


@pytest.fixture
def untouched(monkeypatch, serving):
    """The tokenizer must not be asked for anything."""
    kind = type(serving.router._parts.model.tokenizer)

    def never(*_: Any) -> list[int]:
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(kind, "encode_chat", never)
    monkeypatch.setattr(kind, "encode_text", never)


@pytest.mark.parametrize("body", CAPS.values(), ids=CAPS)
def test_what_is_too_much_is_refused_before_it_is_tokenised(serving, untouched, body: dict[str, Any]):
    status, code = code_of(serving.post(CHAT, body))
    assert (status, code != "internal_error") == (400, True)


def test_a_body_of_more_than_4_mib_is_refused_before_it_is_parsed(serving, untouched):
    assert code_of(serving.post(CHAT, b"{" * (4 * 1024 * 1024 + 1))) == (413, "request_too_large")


def test_a_head_of_more_than_16_kib_is_refused(serving, untouched):
    answer = serving.raw("GET /v1/models HTTP/1.1\nhost: x\n" + "a: " + "b" * 17_000 + "\n\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


def strange_requests(serving) -> None:
    """Requests of all kinds, each with the secret somewhere."""
    words = [{"role": "user", "content": SECRET}]
    bearer = {"authorization": f"Bearer {KEY}"}
    serving.double.play(reply=REPLY.encode())
    for body in (
        chat(messages=words, max_tokens=100),
        chat(messages=words, stream=True, max_tokens=100, user=SECRET),
        chat(messages=words, stop=REPLY[5:9], max_tokens=100),
        chat(messages=[{"role": SECRET, "content": SECRET}]),
        chat(messages=words, max_tokens=SECRET),
        chat(messages=words, max_tokens=10**6),
        chat(messages=words, tools=[{"type": SECRET}]),
        chat(messages=words, unknown=SECRET),
        chat(messages=[{"role": "user", "content": "refuse me"}, *words]),
        chat(messages=words, model=SECRET),
    ):
        serving.post(CHAT, body, **bearer)
    serving.post(PLAIN, {"model": "tiny", "prompt": SECRET, "max_tokens": 50}, **bearer)
    serving.post(PLAIN, {"model": "tiny", "prompt": list(SECRET.encode()), "echo": True}, **bearer)
    serving.post(CHAT, SECRET.encode(), **bearer)
    serving.post(CHAT, json.dumps(chat(messages=words)).encode()[:-3], **bearer)
    serving.post(CHAT, chat(messages=words), authorization=f"Bearer {KEY}-wrong")
    serving.post(f"/v1/{SECRET}?key={KEY}", chat(messages=words), **bearer)
    serving.raw(f"GET /{SECRET} HTTP/9.9\nauthorization: Bearer {KEY}\n\n")
    with serving.open_stream(messages=words):
        pass


def lose_a_group_in_the_middle(serving, kinds) -> None:
    serving.double.play(reply=REPLY.encode(), hold_at=3)
    answers: list[Any] = []
    body = chat(messages=[{"role": "user", "content": SECRET}], max_tokens=100)
    asking = threading.Thread(
        target=lambda: answers.append(serving.post(CHAT, body, authorization=f"Bearer {KEY}")), daemon=True
    )
    asking.start()
    serving.double.wait_for(kinds.submit, count=2)
    serving.double.end(kinds.decode)
    asking.join(DEADLINE_S)
    assert answers


def test_the_logs_have_no_prompt_no_answer_and_no_key(start, kinds, caplog, capfd):
    doors = Doors(KeyStore("", (one_key(KEY, "somebody"),)), secret=b"s")
    with caplog.at_level(logging.DEBUG):
        serving = start(doors=doors)
        strange_requests(serving)
        lose_a_group_in_the_middle(serving, kinds)
    captured = capfd.readouterr()
    logged = caplog.text + captured.out + captured.err
    assert "request " in logged, "there is something to look at"
    pieces = [SECRET, REPLY, KEY, KEY[3:], *(str(list(text.encode())[:4])[1:-1] for text in (SECRET, REPLY))]
    assert [piece for piece in pieces if piece in logged] == []


def test_a_bug_of_ours_tells_no_prompt_either(start, caplog, monkeypatch):
    """The traceback is logged; it has our lines of code, and no values."""
    serving = start()

    def broken(self: Any, messages: Any) -> list[int]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(serving.router._parts.model.tokenizer), "encode_chat", broken)
    answer = serving.post(CHAT, chat(messages=[{"role": "user", "content": SECRET}]))
    assert code_of(answer) == (500, "internal_error")
    assert "a bug" in caplog.text
    assert SECRET not in caplog.text + answer[2].decode()


def test_refused_keys_are_not_told_to_anybody(start, tmp_path: Path):
    serving = start(doors=Doors(KeyStore("", (one_key(KEY, "somebody"),))))
    _, headers, payload = serving.post(CHAT, chat(), authorization=f"Bearer {KEY}-wrong")
    assert KEY not in payload.decode() + str(headers)
