"""Shapes of answers for the OpenAPI document; `format` puts together what is sent, and tests hold it against them."""

from typing import Literal

import msgspec


class Fault(msgspec.Struct):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    code: str  # one for each cause; also in the header x-tandem-error-code
    param: str | None  # the field to change


class Error(msgspec.Struct):
    """Every answer that is not a good one, and the last event but one of a stream that fails."""

    error: Fault


class PromptDetails(msgspec.Struct):
    cached_tokens: int  # those of the prompt that did not have to be computed


class Usage(msgspec.Struct):
    """Over all choices; a prompt counts once. A generated end-of-sequence token is counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(msgspec.Struct):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(msgspec.Struct):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int  # seconds since 1970
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]  # in characters of the answer


class CompletionChoice(msgspec.Struct):
    index: int  # prompt by prompt, each with its n choices
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(msgspec.Struct):
    """Answer of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
