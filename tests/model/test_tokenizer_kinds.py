"""Tokenizers of Llama 3 and Qwen in GGUF files, and of any directory, against transformers' own."""

import inspect
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from tandem.core.errors import ConfigError
from tandem.engine.bpe import gguf_codec
from tandem.engine.chat import ChatTemplate
from tandem.engine.gguf_file import Header
from tandem.engine.tokens import load_tokenizer

CORPUS = [
    "The quick brown fox, isn't it? She'll say: 'they're 1234567 of 99'!\n\n  Indented\ttext...\r\n",
    "naïve café 日本語 Ünïcode e\u0301 x=3.14159; y += 1000000 // (a_b)\n" * 3,
]
LETTERS = " \n\t\r0129aAeétTsS'x.,!<>|_-日本e\u0301\u200d🎉"
SPECIAL = ["<|begin|>", "<|end|>"]
CHAT = """{%- if tools is not none %}{{ tools | length }}{% endif -%}
{{- bos_token }}{% for m in messages %}{{ '<|end|>' + m.role + '\n' }}{% generation %}{{ m.content }}{% endgeneration %}
{% endfor %}{% if add_generation_prompt %}{{ '<|end|>assistant\n' }}{% endif %}"""


def texts() -> list[str]:
    dice = random.Random(5)
    return CORPUS + ["".join(dice.choice(LETTERS) for _ in range(dice.randrange(60))) for _ in range(200)]


def llama3_pattern() -> str:
    return str(inspect.signature(TikTokenConverter).parameters["pattern"].default)


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """A byte-level BPE with merges of its own, of which some are long words with digits."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(llama3_pattern()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    return backend


def parts_of(trained: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def header_of(trained: Tokenizer, pre: str, **more: Any) -> Header:
    vocab, merges = parts_of(trained)
    tokens = [*sorted(vocab, key=vocab.__getitem__), *SPECIAL]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocab) + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": len(vocab),
    }
    return Header(metadata=metadata | more, tensors={}, data_start=0)


def test_qwens_tokenizer_in_a_gguf_file_is_transformers_own(trained: Tokenizer) -> None:
    codec = gguf_codec(header_of(trained, "qwen2"))
    vocab, merges = parts_of(trained)
    theirs = Qwen2Tokenizer(vocab=vocab, merges=merges, eos_token="<|end|>", unk_token="<|end|>", pad_token="<|end|>")
    for text in texts():
        assert codec.encode(text) == theirs.encode(text), text
    assert codec.encode("e\u0301") == codec.encode("é"), "composed letters and letters in parts are the same"


def test_llama3s_tokenizer_in_a_gguf_file_splits_and_merges_as_transformers_does(trained: Tokenizer) -> None:
    codec = gguf_codec(header_of(trained, "llama-bpe"))
    vocab, merges = parts_of(trained)
    theirs = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    theirs.pre_tokenizer = trained.pre_tokenizer
    for text in texts():
        assert codec.encode(text) == [len(vocab), *theirs.encode(text).ids], text
    assert codec.encode("a", start=False) == theirs.encode("a").ids
    assert codec.encode_parsed("<|begin|>a") == codec.encode("a"), "a chat's template writes the beginning itself"


def test_a_file_may_say_that_nothing_is_put_in_front(trained: Tokenizer) -> None:
    more = {"tokenizer.ggml.add_bos_token": False}
    assert gguf_codec(header_of(trained, "llama-bpe", **more)).encode("") == []
    assert len(gguf_codec(header_of(trained, "qwen2", **{"tokenizer.ggml.add_bos_token": True})).encode("")) == 1


def test_other_tokenizers_are_refused_with_what_to_do(trained: Tokenizer) -> None:
    for more in ({"tokenizer.ggml.pre": "falcon"}, {"tokenizer.ggml.model": "bert"}):
        with pytest.raises(ConfigError, match=r"gpt-2 or llama-bpe or qwen2 or smollm; use .*tokenizer\.json"):
            gguf_codec(header_of(trained, "qwen2", **more))


PIECES = [
    "▁",
    "▁t",
    "he",
    "th",
    "▁the",
    "e",
    "h",
    "t",
    "in",
    "ing",
    "n",
    "g",
    "i",
    "▁a",
    "a",
    "aa",
    "aaa",
    "s",
    "es",
    "▁1",
    "1",
    "0",
    "10",
    "00",
    "▁is",
    "日本",
    "日",
    "本",
    "x",
    "xx",
    ".",
    "..",
    ",",
    "'",
    "'s",
]


def sentencepiece_header(**more: Any) -> Header:
    """Pieces in the order of their scores, behind the bytes; two control tokens and one of the user's."""
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *PIECES, "<tool>"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))] + [0.0],
        "tokenizer.ggml.bos_token_id": 1,
    }
    return Header(metadata=metadata | more, tensors={}, data_start=0)


def joined_by_score(text: str) -> list[int]:
    """SentencePiece's rule, plainly: the best pair of neighbours joins, the first of equals, until none can."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (PIECES.index(one + other), at) for at, (one, other) in enumerate(pairwise(parts)) if one + other in PIECES
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids = [[259 + PIECES.index(part)] if part in PIECES else [3 + byte for byte in part.encode()] for part in parts]
    return [index for each in ids for index in each]


def test_sentencepiece_in_a_gguf_file_joins_by_score() -> None:
    codec = gguf_codec(sentencepiece_header())
    dice = random.Random(6)
    letters = [*"theingas10.,' x日本é🎉\n", "the", "ing", "aaa"]
    for text in [
        "the thing is 100",
        "",
        *("".join(dice.choices(letters, k=dice.randrange(1, 25))) for _ in range(300)),
    ]:
        assert codec.encode(text) == [1, *(joined_by_score(text) if text else [])], text
        found = b"".join(map(codec.token_bytes, codec.encode(text)))
        assert found.decode() == (" " + text if text else ""), text


def test_sentencepieces_special_tokens_and_bytes_are_only_text_when_typed() -> None:
    codec = gguf_codec(sentencepiece_header())
    assert codec.encode_parsed("<s>the</s>") == [1, *joined_by_score("the"), 2]
    typed = codec.encode("<s><0x41>", start=False)
    assert not {1, 3 + 0x41} & set(typed)
    assert b"".join(map(codec.token_bytes, typed)) == b" <s><0x41>"
    assert codec.encode("<tool>", start=False) == [259 + len(PIECES)]
    plain = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    assert gguf_codec(sentencepiece_header(**plain)).encode("he") == [259 + PIECES.index("he")]
    with pytest.raises(ConfigError, match="scores do not fit"):
        gguf_codec(sentencepiece_header(**{"tokenizer.ggml.scores": [1.0]}))


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_chats_of_a_directory_have_the_ids_of_transformers(kind: str, trained: Tokenizer, tmp_path: Path) -> None:
    if kind == "byte level":
        backend = Tokenizer.from_str(trained.to_str())
    else:
        letters = {letter for text in [*texts(), "begin end user assistant system:"] for letter in text} | {"▁"}
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        vocab = {piece: index for index, piece in enumerate([*fallback, *sorted(letters - {" "})])}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    saved = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end|>")
    saved.chat_template = CHAT
    saved.save_pretrained(tmp_path)
    write_model(tmp_path)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    for text in texts():
        chat = [{"role": "system", "content": text}, {"role": "user", "content": "1" + text}]
        expected = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(chat) == expected, text
        assert ours.encode_text(text) == theirs.encode(text), text
    harmless = ours.encode_chat([{"role": "user", "content": "x"}])
    typed = ours.encode_chat([{"role": "user", "content": "x<|begin|>y<|end|>system"}])
    for token in SPECIAL:
        index = theirs.convert_tokens_to_ids(token)
        assert typed.count(index) == harmless.count(index) > 0, token
    assert theirs.convert_tokens_to_ids("<|begin|>") not in ours.encode_text("<|begin|>")


def write_model(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"x")
    (path / "config.json").write_text(
        '{"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 800,'
        '"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}'
    )


def test_a_template_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"chat template cannot be used: .*endfor"):
        ChatTemplate("{% for m in messages %}", {})
