"""Text to token ids and back, chat templates included, without torch: routers use it too."""

import functools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from encodings import utf_8
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.engine.bpe import BpeCodec, directory_codec, gguf_codec
from tandem.engine.chat import ChatError, ChatTemplate, Message
from tandem.engine.directory import read_json
from tandem.engine.gguf_file import Header, read_header
from tandem.engine.model import read_shape
from tandem.engine.shape import ModelShape

CACHED_TOKENS = 1 << 18
"""Ids whose bytes are kept once they were asked for: more than models have."""
_ROLE = re.compile(r"[a-z_]{1,32}")


class ByteCodec:
    """The tokenizer of fake models: a byte is its own id."""

    specials: Mapping[str, int] = {}

    def encode(self, text: str, *, start: bool = True) -> list[int]:
        """The bytes of UTF-8."""
        return list(text.encode())

    def encode_parsed(self, text: str) -> list[int]:
        """The same: nothing is special in bytes."""
        return self.encode(text)

    def token_bytes(self, token: int) -> bytes:
        """One byte, or nothing for the end of the sequence."""
        return bytes([token]) if 0 <= token < 256 else b""


FAKE_TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}{{ 'assistant: ' }}"
)


class Tokenizer:
    """One model's tokenizer. `eos_ids` end a sequence; `has_chat` says whether the model has a chat template."""

    def __init__(self, codec: BpeCodec | ByteCodec, template: ChatTemplate | None, eos_ids: tuple[int, ...]) -> None:
        self._codec = codec
        self._template = template
        self._token_bytes = functools.lru_cache(maxsize=CACHED_TOKENS)(codec.token_bytes)
        self.eos_ids = eos_ids
        self.has_chat = template is not None
        self._special_names = {token: name for name, token in codec.specials.items()}
        longest_first = sorted(codec.specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def encode_text(self, text: str) -> list[int]:
        """The prompt of a plain completion. Special tokens that a user typed are ordinary text."""
        return self._codec.encode(_whole(text))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a chat: what Hugging Face's apply_chat_template gives, but no content is ever special.

        Raises ChatError (a ValueError) for a role that is not a plain word, and when the template refuses.
        """
        if self._template is None:
            raise ChatError("this model has no chat template: use plain completions")
        messages = [{"role": each["role"], "content": _whole(each["content"])} for each in messages]
        for message in messages:
            if not _ROLE.fullmatch(message["role"]):
                raise ChatError(f"role is {message['role']!r}: it must be a plain word, such as user")
        rendered = self._template.render(messages)
        nonce = secrets.token_hex(8)
        marks = [f"\ue000{nonce}.{index}\ue001" for index in range(len(messages))]
        marked = self._template.render(
            [{"role": message["role"], "content": mark} for message, mark in zip(messages, marks, strict=True)]
        )
        if self._special.findall(rendered) == self._special.findall(marked):
            return self._codec.encode_parsed(rendered)  # every special token in it is the template's own
        return self._encode_around(rendered, _owned(marked, marks, messages, rendered))

    def detokenizer(self) -> "Detokenizer":
        """A fresh one, for one answer."""
        return Detokenizer(self._token_bytes)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to a text: nothing, for a special one."""
        return self._codec.token_bytes(token)

    def special_name(self, token: int) -> str:
        """How a special token is written; empty for any other."""
        return self._special_names.get(token, "")

    def _encode_around(self, rendered: str, owned: Sequence[bool]) -> list[int]:
        """Special tokens count only where every letter is the template's; what lies between is encoded as a whole."""
        ids: list[int] = []
        done = at = 0
        while match := self._special.search(rendered, at):
            if not all(owned[match.start() : match.end()]):
                at = match.start() + 1
                continue
            if match.start() > done:
                ids += self._codec.encode(rendered[done : match.start()], start=False)
            ids.append(self._codec.specials[match.group()])
            done = at = match.end()
        return ids + (self._codec.encode(rendered[done:], start=False) if done < len(rendered) else [])


def _whole(text: str) -> str:
    """JSON can hold half a surrogate pair, UTF-8 cannot: it becomes a replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _owned(marked: str, marks: Sequence[str], messages: Sequence[Message], rendered: str) -> list[bool]:
    """For each letter of `rendered`, whether the template wrote it. Raises ChatError when that cannot be told."""
    contents = dict(zip(marks, (message["content"] for message in messages), strict=True))
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", marked)
    for change in (str, str.strip):  # many templates strip what they are given
        owned: list[bool] = []
        text = ""
        for piece in pieces:
            letters = change(contents[piece]) if piece in contents else piece
            owned += [piece not in contents] * len(letters)
            text += letters
        if text == rendered:
            return owned
    raise ChatError("a message contains one of the model's special tokens, and its template changes the text around it")


class Detokenizer:
    """Ids to text, as they come: letters that are not complete yet are held back."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = utf_8.IncrementalDecoder(errors="replace")

    def push(self, token: int) -> str:
        """The text that this token completes; empty for special tokens."""
        data = self._token_bytes(token)
        if data.isascii() and not self._decoder.buffer:
            return data.decode()  # most tokens, and nothing is held back
        return self._decoder.decode(data)

    def push_all(self, tokens: Sequence[int]) -> str:
        """The same for tokens that follow each other."""
        return self._decoder.decode(b"".join(map(self._token_bytes, tokens)))

    def finish(self) -> str:
        """What was held back: a replacement character if a letter was never completed."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer(model: str, shape: ModelShape | None = None) -> Tokenizer:
    """The tokenizer of a model (see `read_shape`). Raises ConfigError when it has none that is supported."""
    shape = shape or read_shape(model)
    if shape.is_fake:
        return Tokenizer(ByteCodec(), ChatTemplate(FAKE_TEMPLATE, {}), shape.eos_ids)
    path = Path(shape.path)
    if path.is_dir():
        return Tokenizer(directory_codec(path), _directory_template(path), shape.eos_ids)
    header = read_header(path)
    return Tokenizer(gguf_codec(header), _gguf_template(header), shape.eos_ids)


def load_codec(shape: ModelShape) -> BpeCodec:
    """What a real model's tokenizer is made of. Raises ConfigError as `load_tokenizer` does."""
    path = Path(shape.path)
    return directory_codec(path) if path.is_dir() else gguf_codec(read_header(path))


def _gguf_template(header: Header) -> ChatTemplate | None:
    source = header.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    tokens = header.items("tokenizer.ggml.tokens")
    known = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and index < len(tokens):
            known[name] = str(tokens[index])
    return ChatTemplate(source, known)


def _directory_template(path: Path) -> ChatTemplate | None:
    """transformers 5 writes chat_template.jinja; earlier ones put the template, or several, into the configuration."""
    file, configuration = path / "chat_template.jinja", path / "tokenizer_config.json"
    config = read_json(configuration) if configuration.is_file() else {}
    source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if source is None:
        return None
    if not isinstance(source, str):
        raise ConfigError(f"chat_template in {str(configuration)!r} is not a string")
    known = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            known[name] = text
    return ChatTemplate(source, known)
