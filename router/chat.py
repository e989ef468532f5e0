"""The chat dialect: messages in, an assistant message out."""

from collections.abc import Sequence
from typing import Any

from router.asked import Asked, Particulars, asked, check_model
from router.errors import ApiError
from router.logprobs import Scored, finite
from router.ports import Model, Tokenizer
from router.schema import ChatBody, Message, decode
from router.spelling import spelled
from tandem.core.requests import NO_LOGPROBS


class Chat:
    """POST /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def read(self, payload: bytes, model: Model) -> Asked:
        """Raises ApiError 400 or 404."""
        body = decode(payload, ChatBody)
        check_model(body.model, model.name)
        limit = (body.max_tokens, "max_tokens")
        if body.max_completion_tokens is not None:
            limit = (body.max_completion_tokens, "max_completion_tokens")
        logprobs = _logprobs(body)
        prompt = chat_ids(body.messages, model.tokenizer)
        return asked(body, Particulars([prompt], "messages", *limit, logprobs), model)

    def whole(self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}

    def opening(self, index: int, echo: str) -> dict[str, Any] | None:
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return self._delta(index, {"content": text}, logprobs)

    def closing(self, index: int, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]:
        return self._delta(index, {}, logprobs, finish_reason)

    def logprobs(self, scored: Sequence[Scored], tokenizer: Tokenizer) -> dict[str, Any]:
        content = []
        for token, logprobs, _ in scored:
            likeliest = [self._token(tokenizer, other, logprob) for other, logprob in logprobs.likeliest]
            content.append({**self._token(tokenizer, token, logprobs.drawn), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    @staticmethod
    def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
        text, data = spelled(tokenizer, token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(data)}

    @staticmethod
    def _delta(
        index: int, delta: dict[str, str], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def chat_ids(messages: Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """The prompt of a conversation. Raises ApiError 400."""
    try:
        return tokenizer.encode_chat([{"role": _role(each), "content": _text(each)} for each in messages])
    except ValueError as error:
        text = f"the chat template refuses these messages: {error}"
        raise ApiError(400, "invalid_value", text, "messages") from None


def _logprobs(body: ChatBody) -> int:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(400, "invalid_value", "top_logprobs is only allowed when logprobs is true", "top_logprobs")
    return NO_LOGPROBS


def _role(message: Message) -> str:
    """`developer` is the newer name of `system`; templates know only the older one."""
    return "system" if message.role == "developer" else message.role


def _text(message: Message) -> str:
    """Parts are paragraphs of one message."""
    assert message.content is not None, "a body without it is refused"
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content)
