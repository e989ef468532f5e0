"""Tokens as clients see them one by one: their text, and its bytes."""

from typing import NamedTuple

from router.ports import Tokenizer


class Spelling(NamedTuple):
    """One token. A special one is called by its name, and adds no bytes to the text."""

    text: str
    data: bytes


def spelled(tokenizer: Tokenizer, token: int) -> Spelling:
    """Part of a letter has no text: it is written as its bytes, as OpenAI does."""
    data = tokenizer.token_bytes(token)
    if not data:
        return Spelling(tokenizer.special_name(token), b"")
    try:
        return Spelling(data.decode(), data)
    except UnicodeDecodeError:
        return Spelling("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data)
