"""POST /tokenize and /detokenize: what a prompt is in tokens, and what tokens are as text."""

from typing import Any

import msgspec

from router.asked import check_model
from router.chat import chat_ids
from router.completions import check_ids, text_of
from router.errors import ApiError
from router.ports import Model
from router.schema import Messages, TokenId, check_messages, read
from router.spelling import spelled


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize. Either a text, as for /v1/completions, or the messages of a chat."""

    model: str | None = None  # absent: the one there is
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # true, as for every prompt here
    add_generation_prompt: bool | None = None  # likewise
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize. Special tokens have no text."""

    model: str | None = None
    tokens: list[TokenId]


class Tokens(msgspec.Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int | None  # tokens that a request may have with its answer; null while nobody could serve it
    tokens: list[int]
    token_strs: list[str] | None


class Text(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str


def tokenize(payload: bytes, model: Model) -> Tokens:
    """Raises ApiError 400 or 404. Its `max_model_len` is not known here."""
    body = read(payload, TokenizeBody)
    check_model(model.name if body.model is None else body.model, model.name)
    for name in ("add_special_tokens", "add_generation_prompt"):
        if getattr(body, name) is False:
            raise ApiError(400, "unsupported_parameter", f"{name} is not supported with this value", name)
    tokens = _tokens(body, model)
    names: Any = [spelled(model.tokenizer, token).text for token in tokens] if body.return_token_strs else None
    return Tokens(len(tokens), None, tokens, names)


def detokenize(payload: bytes, model: Model) -> Text:
    """Raises ApiError 400 or 404."""
    body = read(payload, DetokenizeBody)
    check_model(model.name if body.model is None else body.model, model.name)
    return Text(text_of(check_ids(body.tokens, model.vocab, "tokens"), model.tokenizer))


def _tokens(body: TokenizeBody, model: Model) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "invalid_value", "give either prompt or messages", "prompt")
    if body.prompt is not None:
        return model.tokenizer.encode_text(body.prompt)
    assert body.messages is not None
    check_messages(body.messages)
    return chat_ids(body.messages, model.tokenizer)
