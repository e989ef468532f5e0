"""Byte-pair tokenizers, as the `tokenizers` package runs them: built from a GGUF file or a tokenizer.json."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tandem.core.errors import ConfigError
from tandem.engine.gguf_file import Header

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_GGUF_PRE = ("gpt-2", "llama-bpe", "qwen2", "smollm")
"""Pre-tokenizers of GGUF files that are rebuilt here: GPT-2's, with each digit on its own for smollm, and patterns."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {"llama-bpe": _WORDS.replace("DIGITS", "{1,3}"), "qwen2": _WORDS.replace("DIGITS", "")}
"""Llama 3 and Qwen split texts alike, but for how many digits stay together."""


class BpeCodec:
    """Text to ids and back. `specials` maps the text of each special token to its id."""

    def __init__(self, backend: Backend, *, bos: int | None) -> None:
        description = json.loads(backend.to_str())
        self._parsing = backend
        self._plain = Backend.from_str(backend.to_str())
        self._plain.encode_special_tokens = True
        self._bos = bos
        added = backend.get_added_tokens_decoder()
        self.specials = {token.content: index for index, token in added.items() if token.special}
        self._literal = {index: token.content.encode() for index, token in added.items() if not token.special}
        self._special_ids = frozenset(self.specials.values())
        self._byte_level = _is_byte_level(description.get("decoder"))
        self.vocab = backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, start: bool = True) -> list[int]:
        """Ids of a text in which nothing is special; at the `start` of a prompt with what the model wants there."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=start).ids
        return [self._bos, *ids] if start and self._bos is not None else ids

    def encode_parsed(self, text: str) -> list[int]:
        """Ids of a text whose special tokens are meant: a rendered template."""
        ids: list[int] = self._parsing.encode(text, add_special_tokens=False).ids
        return ids

    def serialized(self) -> str:
        """As a tokenizer.json."""
        text: str = self._parsing.to_str()
        return text

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the text; nothing for special tokens and for ids that are none."""
        if token in self._special_ids:
            return b""
        if token in self._literal:
            return self._literal[token]
        piece = self._parsing.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return b"".join(_BYTES[letter] if letter in _BYTES else letter.encode() for letter in piece)
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


def gguf_codec(header: Header) -> BpeCodec:
    """The tokenizer in a GGUF file. Raises ConfigError for kinds that are not rebuilt here."""
    kind, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "gpt-2")
    if kind != "llama" and (kind != "gpt2" or pre not in _GGUF_PRE):
        raise ConfigError(
            f"the GGUF file's tokenizer is {kind!r} with {pre!r}: supported is 'llama', and 'gpt2' with "
            f"{' or '.join(_GGUF_PRE)}; use the model's Hugging Face directory, with its tokenizer.json"
        )
    tokens = [str(token) for token in header.items("tokenizer.ggml.tokens")]
    types = header.items("tokenizer.ggml.token_type")
    backend = _sentencepiece(header, tokens, types) if kind == "llama" else _byte_level(header, tokens, pre)
    backend.add_special_tokens(list(_added(tokens, types, _CONTROL)))
    backend.add_tokens(list(_added(tokens, types, _USER_DEFINED)))
    bos = header.metadata.get("tokenizer.ggml.bos_token_id")
    usual = kind == "llama" or pre == "llama-bpe"
    wants_bos = header.metadata.get("tokenizer.ggml.add_bos_token", usual) is True
    return BpeCodec(backend, bos=bos if wants_bos and isinstance(bos, int) else None)


def _byte_level(header: Header, tokens: Sequence[str], pre: str) -> Backend:
    merges = [_merge(str(merge)) for merge in header.items("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    # Llama 3's tokenizer takes a word that is a token as it is, whatever the merges would make of it.
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(header: Header, tokens: Sequence[str], types: Sequence[object]) -> Backend:
    """SentencePiece's BPE has scores instead of merges: of all neighbours that are one token, the best join first."""
    scores = header.items("tokenizer.ggml.scores")
    if len(scores) != len(tokens) or not all(isinstance(score, int | float) for score in scores):
        raise ConfigError(f"the GGUF file has {len(tokens)} tokens, and its scores do not fit them: it is damaged")
    vocab = {token: index for index, token in enumerate(tokens)}
    pieces = [index for index, kind in enumerate(types) if kind == _NORMAL]
    pieces.sort(key=lambda index: -float(scores[index]))  # type: ignore[arg-type]
    halves = (((tokens[index][:at], tokens[index][at:]) for at in range(1, len(tokens[index]))) for index in pieces)
    merges = [(left, right) for each in halves for left, right in each if left in vocab and right in vocab]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True))
    prefixed = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    space = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space] if prefixed else [space])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _PATTERNS:
        splits = [pre_tokenizers.Split(Regex(_PATTERNS[pre]), behavior="isolated")]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    return pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def directory_codec(path: Path) -> BpeCodec:
    """The tokenizer.json of an HF directory. Raises ConfigError when it is missing or unreadable."""
    file = path / "tokenizer.json"
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"model {str(path)!r} has no readable tokenizer.json: {error}") from error
    try:
        backend = Backend.from_str(text)
    except Exception as error:
        raise ConfigError(f"{str(file)!r} is not a tokenizer: {error}") from error
    return BpeCodec(backend, bos=None)


def _merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(tokens: list[str], types: Iterable[object], wanted: int) -> Iterable[AddedToken]:
    special = wanted == _CONTROL
    for token, kind in zip(tokens, types, strict=True):
        if kind == wanted:
            yield AddedToken(token, special=special, normalized=False)


def _is_byte_level(decoder: Mapping[str, Any] | None) -> bool:
    if decoder is None:
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(each) for each in decoder.get("decoders", ()))


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    letters.update({chr(256 + index): bytes([byte]) for index, byte in enumerate(others)})
    return letters


_BYTES = _byte_letters()
