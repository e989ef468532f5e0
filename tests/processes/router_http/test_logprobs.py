"""Log-probabilities as the official client sees them, in one body and in streams."""

import json
import math

import pytest

HI = [{"role": "user", "content": "hi"}]


def test_a_chat_tells_each_token_with_its_likeliest_ones(serving, kinds):
    serving.double.play(reply="aé".encode())
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert answer.choices[0].message.content == "aé"
    assert [(each.token, each.logprob, each.bytes) for each in content] == [
        ("a", -0.5, [97]),
        ("bytes:\\xc3", -0.5, [0xC3]),
        ("bytes:\\xa9", -0.5, [0xA9]),
    ]
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("a", -0.5), ("b", -1.5)]
    assert serving.double.wait_for(kinds.submit)[0].work.sampling.logprobs == 2


def test_without_top_logprobs_only_the_drawn_token_is_told(serving):
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, max_tokens=1)
        plain = client.chat.completions.create(model="tiny", messages=HI, max_tokens=1)
    assert [each.top_logprobs for each in answer.choices[0].logprobs.content] == [[]]
    assert plain.choices[0].logprobs is None


def test_a_completion_has_the_older_shape(serving):
    serving.double.play(reply=b"abc")
    with serving.client() as client:
        answer = client.completions.create(model="tiny", prompt="x", logprobs=1)
        alone = client.completions.create(model="tiny", prompt="x", logprobs=0, max_tokens=1)
    told = answer.choices[0].logprobs
    assert (told.tokens, told.token_logprobs, told.text_offset) == (["a", "b", "c"], [-0.5] * 3, [0, 1, 2])
    assert told.top_logprobs == [{"a": -0.5}, {"b": -0.5}, {"c": -0.5}]
    assert alone.choices[0].logprobs.top_logprobs == [{"a": -0.5}]


def test_a_special_token_is_called_by_its_name(serving):
    serving.double.play(ids=[255, 256, 65])
    with serving.client() as client:
        answer = client.chat.completions.create(
            model="tiny", messages=HI, logprobs=True, top_logprobs=2, max_tokens=3, extra_body={"ignore_eos": True}
        )
    content = answer.choices[0].logprobs.content
    assert [each.token for each in content] == ["bytes:\\xff", "<end>", "A"]
    assert [(top.token, top.bytes) for top in content[0].top_logprobs] == [("bytes:\\xff", [255]), ("<end>", [])]


@pytest.mark.parametrize("stop", [None, "wor"])
def test_a_stream_tells_the_same_as_a_body(serving, stop):
    with serving.client() as client:
        whole = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=1, stop=stop)
        chunks = list(
            client.chat.completions.create(
                model="tiny", messages=HI, logprobs=True, top_logprobs=1, stop=stop, stream=True
            )
        )
    choices = [chunk.choices[0] for chunk in chunks]
    streamed = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    assert streamed == whole.choices[0].logprobs.content
    assert "".join(each.token for each in streamed) == whole.choices[0].message.content
    for choice in choices:
        told = "".join(each.token for each in choice.logprobs.content) if choice.logprobs else ""
        assert told == (choice.delta.content or ""), "each piece of text comes with its own tokens"


def test_a_completion_streams_offsets_that_go_on(serving):
    with serving.client() as client:
        chunks = list(client.completions.create(model="tiny", prompt="x", logprobs=0, stream=True))
    offsets = [at for chunk in chunks if chunk.choices[0].logprobs for at in chunk.choices[0].logprobs.text_offset]
    assert offsets == list(range(len("hello world")))


def test_an_impossible_token_has_a_number_too(serving, monkeypatch):
    monkeypatch.setattr("router.logprobs.LEAST_LOGPROB", -0.25)
    with serving.client() as client:
        answer = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, max_tokens=1)
    assert answer.choices[0].logprobs.content[0].logprob == -0.25
    assert math.isfinite(json.loads(answer.model_dump_json())["choices"][0]["logprobs"]["content"][0]["logprob"])
