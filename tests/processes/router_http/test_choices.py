"""Several choices in one answer: each is a request of its own, and they live and end together."""

import json
import socket

import openai
import pytest

from tandem.core.requests import Reason

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def test_each_choice_is_a_request_of_its_own(serving, kinds):
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, n=3, seed=5, max_tokens=5)
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in answer.choices] == [
        (index, "hello", "length") for index in range(3)
    ]
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (9, 15, 24)
    works = [submit.work for submit in serving.double.wait_for(kinds.submit, kinds.prefill, 3)]
    assert [work.sampling.seed for work in works] == [5, 6, 7]
    rids = [work.room.rid for work in works]
    assert rids == [rids[0], rids[0] + 1, rids[0] + 2]
    assert answer.id == f"chatcmpl-{rids[0]:016x}"


def test_each_prompt_has_its_choices_in_order(serving, kinds):
    with serving.client() as client:
        answer = client.completions.create(model="tiny", prompt=["ab", "c"], n=2, echo=True, max_tokens=5)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "abhello"),
        (1, "abhello"),
        (2, "chello"),
        (3, "chello"),
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 20)
    prompts = [bytes(submit.work.prompt) for submit in serving.double.wait_for(kinds.submit, kinds.prefill, 4)]
    assert prompts == [b"ab", b"ab", b"c", b"c"]


def test_a_prompt_counts_once_and_so_does_what_was_cached_of_it(serving):
    """Of one token each, as decode's tokens may overtake prefill's first one, which tells it."""
    serving.double.play(cached=1)
    with serving.client() as client:
        usage = client.completions.create(model="tiny", prompt=["ab", "c"], n=2, max_tokens=1).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 4, 7)
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_a_stream_tells_choices_as_they_come(serving):
    with serving.client() as client:
        made = client.chat.completions.create(
            model="tiny", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(made)
    for index in (0, 1):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == "hello world"
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 24)


def test_echoes_stand_first_in_their_choices_streams(serving):
    with serving.client() as client:
        chunks = list(client.completions.create(model="tiny", prompt=["a", "b"], echo=True, max_tokens=5, stream=True))
    for index, text in enumerate(("ahello", "bhello")):
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices[0].index == index) == text


def test_the_failure_of_one_is_that_of_all(serving, kinds):
    """The others have far more to say than the router takes in before it sees the failure."""
    serving.double.play(reply=b"x" * 2000, fail_at={0: (4, Reason.DEADLINE)})
    status, _, payload = serving.post(CHAT, {"model": "tiny", "messages": HI, "n": 3})
    assert (status, json.loads(payload)["error"]["code"]) == (504, "deadline_exceeded")
    assert reasons(serving, kinds) == [Reason.PEER_ENDED, Reason.CLIENT_GONE, Reason.CLIENT_GONE]


def test_the_failure_of_one_ends_the_stream_of_all(serving, kinds):
    serving.double.play(reply=b"x" * 2000, hold_at=2, fail_at={0: (4, Reason.DEADLINE)})
    with serving.open_stream(n=3) as line:
        # None of these is on its way when the hold ends.
        data = kinds.read_until(line, lambda data: data.count(b'"content":"x"') >= 3 * 2)
        serving.double.go()
        data = kinds.read_until(line, lambda data: b"[DONE]" in data, data)
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1].strip() == b"[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "deadline_exceeded"
    assert b'"finish_reason":"' not in data, "none of them is called finished"
    assert reasons(serving, kinds) == [Reason.PEER_ENDED, Reason.CLIENT_GONE, Reason.CLIENT_GONE]


def reasons(serving, kinds) -> list[Reason]:
    """What the decode group was told of each choice."""
    cancels = serving.double.wait_for(kinds.cancel, kinds.decode, 3)
    return [cancel.reason for cancel in sorted(cancels, key=lambda cancel: cancel.room.rid)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_all(serving, kinds, stream):
    serving.double.play(hold_at=3)
    with serving.open_stream(n=4, stream=stream):
        serving.double.wait_for(kinds.submit, kinds.decode, 4)
    cancels = serving.double.wait_for(kinds.cancel, kinds.decode, 4)
    assert {cancel.reason for cancel in cancels} == {Reason.CLIENT_GONE}
    assert len({cancel.room.rid for cancel in cancels}) == 4


def test_what_a_slow_reader_leaves_unread_counts_over_all_choices(start, kinds, monkeypatch):
    monkeypatch.setattr("router.reader.UNREAD_CHARS", 20_000)
    serving = start(stalled_write_s=1000.0)
    serving.double.play(ids=[65] * 7000, hold_at=1)
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(serving.address)
        payload = json.dumps({"model": "tiny", "messages": HI, "stream": True, "n": 8}).encode()
        line.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n".encode() + payload)
        serving.double.wait_for(kinds.submit, kinds.decode, 8)
        serving.double.go()
        cancels = serving.double.wait_for(kinds.cancel, kinds.decode)
    assert {cancel.reason for cancel in cancels} == {Reason.CLIENT_GONE}, "none of them alone has so much to say"
    serving.wait_at_rest()


def test_a_choice_that_fits_nowhere_leaves_nothing_of_the_others(serving, kinds):
    body = {"model": "tiny", "prompt": [[97], [97] * 9000], "max_tokens": 5}
    status, _, payload = serving.post("/v1/completions", body)
    assert (status, json.loads(payload)["error"]["code"]) == (400, "context_length_exceeded")
    assert len(serving.double.wait_for(kinds.cancel, kinds.decode)) == 1
    serving.wait_at_rest()


def test_too_many_choices_are_refused_with_their_number(serving):
    with serving.client() as client, pytest.raises(openai.BadRequestError, match="more than 128 choices"):
        client.completions.create(model="tiny", prompt=["a"] * 17, n=8)
