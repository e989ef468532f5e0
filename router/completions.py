"""The completions dialect: one prompt in, its continuation out."""

from typing import Any

from router.asked import Asked, asked, check_model
from router.errors import ApiError
from router.ports import Model
from router.schema import CompletionBody, decode

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""


class Completions:
    """POST /v1/completions."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def read(self, payload: bytes, model: Model) -> Asked:
        """Raises ApiError 400 or 404."""
        body = decode(payload, CompletionBody)
        check_model(body, model.name)
        prompt = prompt_ids(body.prompt, model)
        limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        return asked(body, prompt, "prompt", (limit, "max_tokens"), model)

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        return self._choice(text, finish_reason)

    def opening(self) -> dict[str, Any] | None:
        return None

    def piece(self, text: str) -> dict[str, Any]:
        return self._choice(text, None)

    def closing(self, finish_reason: str) -> dict[str, Any]:
        return self._choice("", finish_reason)

    @staticmethod
    def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def prompt_ids(prompt: str | list[int | str | list[int]], model: Model) -> list[int]:
    """The one prompt, in tokens. Raises ApiError 400 for an empty one, for several, and for ids that do not exist."""
    if isinstance(prompt, str):
        ids = model.tokenizer.encode_text(prompt)
    elif len(prompt) == 1 and isinstance(prompt[0], str):
        ids = model.tokenizer.encode_text(prompt[0])
    elif len(prompt) == 1 and isinstance(prompt[0], list):
        ids = _known(prompt[0], model)
    elif all(isinstance(item, int) for item in prompt):
        ids = _known([item for item in prompt if isinstance(item, int)], model)
    else:
        raise ApiError(400, "unsupported_parameter", "a list of several prompts is not supported yet", "prompt")
    if not ids:
        raise ApiError(400, "invalid_value", "prompt is empty: give at least one token", "prompt")
    return ids


def _known(ids: list[int], model: Model) -> list[int]:
    if ids and max(ids) >= model.vocab:
        raise ApiError(400, "invalid_value", f"prompt: token ids must be below {model.vocab}", "prompt")
    return ids
