"""Byte-pair tokenizers, as the `tokenizers` package runs them: built from a GGUF file or a tokenizer.json."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tandem.core.errors import ConfigError
from tandem.engine.gguf_file import Header

_CONTROL, _USER_DEFINED = 3, 4
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_GGUF_PRE = ("smollm", "gpt-2")
"""Pre-tokenizers of GGUF files that are rebuilt here: GPT-2's, with each digit on its own for smollm."""


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
    """The tokenizer in a GGUF file. Raises ConfigError for kinds other than byte-level BPE."""
    kind, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _GGUF_PRE:
        raise ConfigError(
            f"the GGUF file's tokenizer is {kind!r} with {pre!r}: supported is 'gpt2' with {' or '.join(_GGUF_PRE)}; "
            "use the model's Hugging Face directory, with its tokenizer.json"
        )
    tokens = [str(token) for token in header.items("tokenizer.ggml.tokens")]
    types = header.items("tokenizer.ggml.token_type")
    merges = [_merge(str(merge)) for merge in header.items("tokenizer.ggml.merges")]
    backend = Backend(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(_added(tokens, types, _CONTROL)))
    backend.add_tokens(list(_added(tokens, types, _USER_DEFINED)))
    bos = header.metadata.get("tokenizer.ggml.bos_token_id")
    wants_bos = header.metadata.get("tokenizer.ggml.add_bos_token") is True
    return BpeCodec(backend, bos=bos if wants_bos and isinstance(bos, int) else None)


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
