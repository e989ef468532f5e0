"""The chat dialect: messages in, an assistant message out."""

from typing import Any

from router.asked import Asked, asked, check_model
from router.errors import ApiError
from router.ports import Model
from router.schema import ChatBody, Message, decode


class Chat:
    """POST /v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def read(self, payload: bytes, model: Model) -> Asked:
        """Raises ApiError 400 or 404."""
        body = decode(payload, ChatBody)
        check_model(body, model.name)
        messages = [{"role": _role(message), "content": _text(message)} for message in body.messages]
        try:
            prompt = model.tokenizer.encode_chat(messages)
        except ValueError as error:
            raise ApiError(
                400, "invalid_value", f"the chat template refuses these messages: {error}", "messages"
            ) from (None)
        if body.max_completion_tokens is not None:
            return asked(body, prompt, "messages", (body.max_completion_tokens, "max_completion_tokens"), model)
        return asked(body, prompt, "messages", (body.max_tokens, "max_tokens"), model)

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def opening(self) -> dict[str, Any] | None:
        return self._delta({"role": "assistant", "content": ""})

    def piece(self, text: str) -> dict[str, Any]:
        return self._delta({"content": text})

    def closing(self, finish_reason: str) -> dict[str, Any]:
        return self._delta({}, finish_reason)

    @staticmethod
    def _delta(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _role(message: Message) -> str:
    """`developer` is the newer name of `system`; templates know only the older one."""
    return "system" if message.role == "developer" else message.role


def _text(message: Message) -> str:
    """Parts are paragraphs of one message."""
    assert message.content is not None, "a body without it is refused"
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text for part in message.content)
