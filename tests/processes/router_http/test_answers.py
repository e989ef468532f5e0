"""What clients get when all goes well, through the official client and over real HTTP."""

import asyncio
import dataclasses
import json
import socket
import threading

import openai
import pytest
from waiting import DEADLINE_S

from tandem.core.requests import Reason

HI = [{"role": "user", "content": "hi"}]


def test_a_chat_is_answered(serving):
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, temperature=0)
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    # The end-of-sequence token was generated too, so it is counted.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 12, 21)
    assert answer.id.startswith("chatcmpl-")


def test_both_groups_of_the_pair_get_the_work(serving, kinds):
    with serving.client() as client:
        client.chat.completions.create(model="tiny", messages=HI, temperature=0.5, top_p=0.9, seed=-1, max_tokens=20)
    works = {name: serving.double.wait_for(kinds.submit, name)[0] for name in (kinds.prefill, kinds.decode)}
    prefill, decode = works[kinds.prefill].work, works[kinds.decode].work
    assert (prefill.peer, decode.peer) == (kinds.decode, kinds.prefill)
    assert prefill.room == decode.room
    assert prefill.room.attempt == 1
    assert bytes(prefill.prompt) == b"user: hi\n"
    assert (prefill.max_tokens, prefill.stop_ids) == (20, (kinds.eos,))
    assert (prefill.sampling.temperature, prefill.sampling.top_p, prefill.sampling.seed) == (0.5, 0.9, 2**63 - 1)
    assert 0 < works[kinds.prefill].remaining_ms <= 600_000


def test_one_token_needs_no_decode_group(serving, kinds):
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=1)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("h", "length")
    assert [message.work.peer for message in serving.double.wait_for(kinds.submit)] == [None]


def test_an_answer_that_ends_at_its_first_token_is_empty(serving):
    serving.double.play(reply=b"")
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")
    assert answer.usage.completion_tokens == 1


def test_max_completion_tokens_wins_and_length_is_told(serving):
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=5, max_tokens=9)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hello", "length")
    assert answer.usage.completion_tokens == 5


def test_a_chat_may_use_what_is_left_of_the_context(serving, kinds):
    with serving.client() as client:
        client.chat.completions.create(model="tiny", messages=HI)
    assert serving.double.wait_for(kinds.submit)[0].work.max_tokens == 8192 - 9


def test_absent_fields_have_the_defaults_of_openai(serving, kinds):
    with serving.client() as client:
        answer = client.completions.create(model="tiny", prompt="abc")
        client.completions.create(model="tiny", prompt="abc")
    assert answer.choices[0].text == "hello world"
    works = [message.work for message in serving.double.wait_for(kinds.submit, kinds.prefill, 2)]
    assert [work.max_tokens for work in works] == [16, 16]
    assert [(work.sampling.temperature, work.sampling.top_p) for work in works] == [(1.0, 1.0)] * 2
    assert len({work.sampling.seed for work in works}) == 2, "every request draws a seed of its own"


def test_ignore_eos_goes_on_to_the_limit(serving):
    serving.double.play(ids=[65, 256, 66, 256, 67, 68])
    with serving.client() as client:
        answer = client.completions.create(model="tiny", prompt="a", max_tokens=5, extra_body={"ignore_eos": True})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("ABC", "length")
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], ["abc"], [[97, 98, 99]]])
def test_a_prompt_is_one_text_or_one_list_of_ids(serving, kinds, prompt):
    with serving.client() as client:
        client.completions.create(model="tiny", prompt=prompt)
    assert serving.double.wait_for(kinds.submit)[0].work.prompt == (97, 98, 99)


def test_parts_and_roles_become_messages(serving, kinds):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": parts},
    ]
    with serving.client() as client:
        client.chat.completions.create(model="tiny", messages=messages)
    prompt = bytes(serving.double.wait_for(kinds.submit)[0].work.prompt)
    assert prompt == b"system: rules\nassistant: yes\nuser: one\ntwo\n"


def test_a_schema_reaches_both_groups(serving, kinds):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    with serving.client() as client:
        client.chat.completions.create(model="tiny", messages=HI, response_format=wanted)
    grammars = [submit.work.grammar for submit in serving.double.wait_for(kinds.submit, count=2)]
    assert [json.loads(grammar) for grammar in grammars] == [schema] * 2


def test_a_schema_is_compiled_beside_the_loop(serving, monkeypatch):
    threads = []
    model = serving.router.service.model
    seen = dataclasses.replace(model, check_grammar=lambda text: threads.append(threading.current_thread().name))
    monkeypatch.setattr(serving.router.service, "model", seen)
    with serving.client() as client:
        client.chat.completions.create(model="tiny", messages=HI, response_format={"type": "json_object"})
    assert [name.rpartition("_")[0] for name in threads] == ["tokenise"]


def test_a_schema_that_cannot_be_used_reaches_no_group(serving, kinds):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": "impossible"}}}
    with serving.client() as client, pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="tiny", messages=HI, response_format=wanted)
    assert (raised.value.code, raised.value.param) == ("invalid_schema", "response_format")
    assert not [message for _, message in serving.double.seen if isinstance(message, kinds.submit)]


def test_a_stream_has_the_role_first_and_usage_last(serving):
    serving.double.play(reply="héllo 🌍".encode())
    with serving.client() as client:
        stream = client.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(texts) == "héllo 🌍"
    assert "�" not in "".join(texts), "half a letter is held back"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 12)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_completion_streams_too(serving):
    with serving.client() as client:
        chunks = list(client.completions.create(model="tiny", prompt="a", stream=True, max_tokens=5))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_async_client_streams_many_at_once(serving):
    async def one(client, number: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": str(number)}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def many() -> list[str]:
        async with serving.async_client() as client:
            return await asyncio.gather(*(one(client, number) for number in range(32)))

    assert asyncio.run(many()) == ["hello world"] * 32


def test_duplicates_and_other_attempts_are_not_delivered(serving):
    serving.double.play(noise=True)
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI)
    assert answer.choices[0].message.content == "hello world"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_over_several_tokens_ends_it_on_both_sides(serving, kinds, stream):
    serving.double.play(reply=b"hello world and more", hold_at=14)
    with serving.client() as client:
        made = client.chat.completions.create(model="tiny", messages=HI, stop=["zzz", "wor"], stream=stream)
        if stream:
            chunks = list(made)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = made.choices[0].message.content, made.choices[0].finish_reason
            assert made.usage.completion_tokens == 9
    assert (text, reason) == ("hello ", "stop")
    cancels = serving.double.wait_for(kinds.cancel, count=2)
    assert {cancel.reason for cancel in cancels} == {Reason.STOP_STRING}


def test_the_stream_is_framed_as_server_sent_events(serving, kinds):
    with serving.open_stream(max_tokens=2) as line:
        data = kinds.read_until(line, lambda data: b"[DONE]" in data)
    status, headers, _ = kinds.parse(data)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert len(headers["x-request-id"]) == 16
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith('data: {"')]
    deltas = [(event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in events]
    assert deltas == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "h"}, None),
        ({"content": "e"}, None),
        ({}, "length"),
    ]


def test_a_client_of_http_1_0_gets_no_chunks(start, kinds):
    """It takes all up to the end of the connection, so chunks and their lengths would be a part of the text."""
    serving = start(ping_s=0.05)
    serving.double.play(hold_at=3)
    body = json.dumps({"model": "tiny", "messages": HI, "stream": True}).encode()
    with socket.create_connection(serving.address, timeout=DEADLINE_S) as line:
        line.sendall(f"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b": ping" not in answer:
            answer += (more := line.recv(65536))
            assert more, answer
        serving.double.go()
        answer += kinds.read_all(line)
    status, headers, payload = kinds.parse(answer)
    assert (status, headers["connection"], headers.get("transfer-encoding")) == (200, "close", None)
    *events, rest = payload.split(b"\n\n")
    assert (events[-1], rest) == (b"data: [DONE]", b"")
    assert {event[:6] for event in events} == {b"data: ", b": ping"}


def test_pings_keep_the_line_open_before_the_first_token(start, kinds):
    serving = start(ping_s=0.1)
    serving.double.play(hold_at=0)
    with serving.open_stream() as line:
        data = kinds.read_until(line, lambda data: data.count(b": ping\n\n") >= 3)
        assert b"data:" not in data
        serving.double.go()
        data = kinds.read_until(line, lambda data: b"[DONE]" in data, data)
    assert data.count(b'"role":"assistant"') == 1


def test_one_connection_serves_many_requests(serving):
    with serving.client() as client:
        assert [client.models.list().data[0].id, client.models.retrieve("tiny").id] == ["tiny", "tiny"]
        for _ in range(5):
            client.chat.completions.create(model="tiny", messages=HI)


def test_health_version_and_workers_are_told(serving, kinds):
    assert serving.get("/livez") == (200, {"status": "alive"})
    assert serving.get("/readyz") == (200, {"status": "ready"})
    assert serving.get("/version")[1]["version"]
    workers = serving.get("/workers", admin=True)[1]["workers"]
    assert [(worker["name"], worker["role"], worker["state"]) for worker in workers] == [
        (kinds.decode, "decode", "usable"),
        (kinds.prefill, "prefill", "usable"),
    ]
    assert serving.get("/workers")[0] == 404, "the data port does not tell"


def test_the_openapi_document_lists_routes_and_bodies(serving):
    document = serving.get("/openapi.json")[1]
    post = document["paths"]["/v1/chat/completions"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert {"ChatBody", "CompletionBody", "Message"} <= document["components"]["schemas"].keys()
    assert {"/v1/completions", "/v1/models", "/readyz"} <= document["paths"].keys()
