"""A router that is told to end: what is open may finish, what is new is refused, and nobody waits for ever."""

import json

import openai
import pytest

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def open_stream(serving, client: openai.OpenAI, until):
    """A stream that waits in the middle, on a router that has been told to end."""
    serving.double.play(hold_at=3)
    stream = client.chat.completions.create(**BODY, stream=True)
    first = next(stream)
    serving.router.stop()
    until(lambda: serving.get("/status", admin=True)[1]["state"] == "draining")
    return first, stream


def ended(serving, until) -> int | None:
    until(lambda: serving.exit_code is not None)
    return serving.exit_code


def test_what_is_open_finishes_and_what_is_new_is_refused(start, until):
    serving = start()
    with serving.client() as client:
        first, stream = open_stream(serving, client, until)
        status, headers, payload = serving.post(CHAT, BODY)
        assert (status, json.loads(payload)["error"]["code"], headers["retry-after"]) == (503, "shutting_down", "1")
        assert serving.get("/readyz")[0] == 503
        assert serving.get("/livez")[0] == 200
        told = serving.get("/status", admin=True)[1]
        assert (told["open"], told["admitted"]) == (1, 1)
        serving.double.go()
        text = "".join(chunk.choices[0].delta.content or "" for chunk in (first, *stream))
    assert text == "hello world"
    assert ended(serving, until) == 0


def test_a_request_that_loses_its_group_meanwhile_still_goes_on(start, kinds, until):
    serving = start(pairs=2)
    with serving.client() as client:
        first, stream = open_stream(serving, client, until)
        lost = next(g for g, m in serving.double.seen if isinstance(m, kinds.submit) and g[0] == "d")
        serving.router.group_lost(lost, "killed")
        serving.double.wait_for(kinds.submit, count=4)
        serving.double.go()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in (first, *stream)) == "hello world"
    assert ended(serving, until) == 0


def test_what_takes_too_long_ends_with_an_error(start, until):
    serving = start(drain_s=0.3)
    serving.double.play(hold_at=3)
    with serving.client() as client:
        stream = client.chat.completions.create(**BODY, stream=True)
        next(stream)
        serving.router.stop()
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    assert raised.value.code == "shutting_down"
    assert ended(serving, until) == 0


def test_who_is_told_twice_ends_at_once(start, until):
    serving = start(drain_s=10_000)
    with serving.client() as client:
        _, stream = open_stream(serving, client, until)
        serving.router.stop()
        with pytest.raises(openai.APIError) as raised:
            list(stream)
    assert raised.value.code == "shutting_down"
    assert ended(serving, until) == 0


def test_with_nothing_open_it_takes_no_time(start, until):
    serving = start(drain_s=10_000)
    serving.router.stop()
    assert ended(serving, until) == 0
