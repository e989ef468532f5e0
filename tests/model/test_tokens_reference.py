"""Our tokenizer against transformers' own reading of the same GGUF file, and its apply_chat_template."""

import random
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from tandem.engine.model import bundled_model_path
from tandem.engine.tokens import Tokenizer, _owned, load_tokenizer

LETTERS = " \n\t\r0129aAeétx.,!<>|_-日本語🎉\u200d\u0301\ue000\ue001\x7f"
TEXTS = [
    "",
    "Hello",
    "  leading",
    "\n\nlines",
    "\tx\r\n",
    "1234 99",
    "naïve café 日本語 👩‍👩‍👧",
    "end  ",
    "end\n",
    "a\u00a0b",
    "   ",
]


@pytest.fixture(scope="module")
def theirs() -> Any:
    path = bundled_model_path()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # Their converter does not know the `smollm` pre-tokenizer; the model's own tokenizer.json has this one.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    return tokenizer


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return load_tokenizer(str(bundled_model_path()))


def texts() -> list[str]:
    dice = random.Random(3)
    return TEXTS + ["".join(dice.choice(LETTERS) for _ in range(dice.randrange(40))) for _ in range(200)]


def chats(text: str) -> list[list[dict[str, str]]]:
    user = {"role": "user", "content": text}
    return [[user], [{"role": "system", "content": text}, user, {"role": "assistant", "content": f"x{text}"}, user]]


def test_plain_text_has_the_same_ids(theirs: Any, ours: Tokenizer) -> None:
    for text in texts():
        assert ours.encode_text(text) == theirs.encode(text), text


def test_chats_have_the_same_ids(theirs: Any, ours: Tokenizer) -> None:
    for text in texts():
        for chat in chats(text):
            expected = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
            assert ours.encode_chat(chat) == expected, text


def test_the_careful_path_gives_ordinary_text_the_same_ids(theirs: Any, ours: Tokenizer) -> None:
    """It is taken only when a message holds a special token's text; it must not treat the rest differently."""
    template = ours._template
    assert template is not None
    for text in texts():
        for chat in chats(text):
            marks = [f"\ue000mark{index}\ue001" for index in range(len(chat))]
            marked = template.render([each | {"content": mark} for each, mark in zip(chat, marks, strict=True)])
            rendered = template.render(chat)
            found = ours._encode_around(rendered, _owned(marked, marks, chat, rendered))
            expected = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
            assert found == expected, text


def test_any_ids_decode_to_the_same_text(theirs: Any, ours: Tokenizer) -> None:
    dice = random.Random(4)
    for _ in range(300):
        ids = [dice.randrange(49152) for _ in range(12)]
        detokenizer = ours.detokenizer()
        found = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
        assert found == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False), ids
