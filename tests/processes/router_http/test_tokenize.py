"""POST /tokenize and /detokenize on a real router."""

import json

import pytest

from tandem.core.config import Limits

HI = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def asked(serving, path: str, **body) -> tuple[int, dict]:
    status, _, payload = serving.post(path, body)
    return status, json.loads(payload)


def test_a_text_and_a_chat_are_told_in_tokens(serving):
    assert asked(serving, "/tokenize", prompt="aé") == (
        200,
        {"count": 3, "max_model_len": Limits().context, "tokens": [97, 0xC3, 0xA9], "token_strs": None},
    )
    status, told = asked(serving, "/tokenize", model="tiny", messages=HI, add_generation_prompt=True)
    assert (status, bytes(told["tokens"])) == (200, b"user: hi\n")
    told = asked(serving, "/tokenize", prompt="aé", return_token_strs=True)[1]
    assert told["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert asked(serving, "/tokenize", prompt="")[1]["count"] == 0


def test_tokens_are_told_as_text(serving):
    assert asked(serving, "/detokenize", tokens=[97, 0xC3, 0xA9, 256]) == (200, {"prompt": "aé"})
    assert asked(serving, "/detokenize", tokens=[]) == (200, {"prompt": ""})


def test_a_long_text_is_read_aside(serving):
    assert asked(serving, "/tokenize", prompt="a" * 100_000)[1]["count"] == 100_000


def test_without_groups_no_length_is_known(start):
    assert asked(start(registered=False), "/tokenize", prompt="a")[1]["max_model_len"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "huge"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/tokenize", {"messages": [{"role": "user", "content": "refuse me"}]}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [257]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
    ],
)
def test_what_cannot_be_converted_names_its_field(serving, path, body, status, param):
    got, told = asked(serving, path, **body)
    assert (got, told["error"]["param"]) == (status, param)
