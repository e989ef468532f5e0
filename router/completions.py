"""The completions dialect: prompts in, their continuations out."""

from collections.abc import Sequence
from typing import Any, cast

from router.asked import CHOICES_MAX, Asked, Particulars, asked, check_model
from router.errors import ApiError
from router.logprobs import Scored, finite
from router.ports import Model, Tokenizer
from router.schema import CompletionBody, decode
from router.spelling import spelled
from tandem.core.requests import NO_LOGPROBS

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
        check_model(body.model, model.name)
        if body.echo and body.logprobs is not None:
            text = "echo with logprobs is not supported: a prompt's tokens have no log-probabilities here"
            raise ApiError(400, "unsupported_parameter", text, "echo")
        prompts = prompts_of(body.prompt, model)
        echoes = tuple(text_of(prompt, model.tokenizer) for prompt in prompts) if body.echo else ()
        limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        logprobs = NO_LOGPROBS if body.logprobs is None else body.logprobs
        return asked(body, Particulars(prompts, "prompt", limit, "max_tokens", logprobs, echoes), model)

    def whole(self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]:
        return self._choice(index, text, logprobs, finish_reason)

    def opening(self, index: int, echo: str) -> dict[str, Any] | None:
        return self._choice(index, echo) if echo else None

    def piece(self, index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return self._choice(index, text, logprobs)

    def closing(self, index: int, logprobs: dict[str, Any] | None, finish_reason: str) -> dict[str, Any]:
        return self._choice(index, "", logprobs, finish_reason)

    def logprobs(self, scored: Sequence[Scored], tokenizer: Tokenizer) -> dict[str, Any]:
        tops = []
        for token, logprobs, _ in scored:  # the drawn token is always there, so there may be one more than asked for
            pairs = [*logprobs.likeliest, (token, logprobs.drawn)]
            tops.append({spelled(tokenizer, other).text: finite(logprob) for other, logprob in pairs})
        return {
            "tokens": [spelled(tokenizer, each.token).text for each in scored],
            "token_logprobs": [finite(each.logprobs.drawn) for each in scored],
            "top_logprobs": tops,
            "text_offset": [each.start for each in scored],
        }

    @staticmethod
    def _choice(
        index: int, text: str, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def prompts_of(prompt: str | list[int | str | list[int]], model: Model) -> list[list[int]]:
    """The prompts, in tokens. Raises ApiError 400 for empty ones, for mixed lists, and for ids that do not exist."""
    if isinstance(prompt, str):
        return [_ids(prompt, model)]
    kinds = set(map(type, prompt))
    if not kinds - {int}:
        return [_ids(cast(list[int], prompt), model)]
    several = cast(list[str | list[int]], prompt)
    if int in kinds:
        text = "prompt: a list has token ids, or texts and lists of token ids, but not both"
        raise ApiError(400, "invalid_value", text, "prompt")
    if len(several) > CHOICES_MAX:
        text = f"prompt: {len(several)} prompts are more than {CHOICES_MAX} choices"
        raise ApiError(400, "invalid_value", text, "prompt")
    return [_ids(item, model) for item in several]


def text_of(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of token ids; special ones have none."""
    detokenizer = tokenizer.detokenizer()
    return "".join([*map(detokenizer.push, ids), detokenizer.finish()])


def check_ids(ids: list[int], vocab: int, param: str) -> list[int]:
    """The same. Raises ApiError 400 for those that do not exist."""
    if ids and max(ids) >= vocab:
        raise ApiError(400, "invalid_value", f"{param}: token ids must be below {vocab}", param)
    return ids


def _ids(prompt: str | list[int], model: Model) -> list[int]:
    ids = model.tokenizer.encode_text(prompt) if isinstance(prompt, str) else check_ids(prompt, model.vocab, "prompt")
    if not ids:
        raise ApiError(400, "invalid_value", "prompt is empty: give at least one token", "prompt")
    return ids
