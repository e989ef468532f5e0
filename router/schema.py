"""The request bodies of the OpenAI API, as strict types; a body that does not fit is answered with the field's name."""

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from router.errors import ApiError
from tandem.core.requests import Priority, Salt

NESTING_MAX = 64
MESSAGES_MAX = 1024

Stop = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What chat and completions share. Null means absent, as everywhere in this API."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Priority | None = None  # higher goes first
    cache_salt: Salt | None = None  # prompts of different salts share nothing


class TextPart(msgspec.Struct):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, kw_only=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None  # required; absent where the message is refused for another field
    name: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    audio: Any = None
    refusal: Any = None


class ChatBody(Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Count | None = None


class CompletionBody(Body, kw_only=True):
    """POST /v1/completions. A list holds token ids, or exactly one text, or exactly one list of token ids."""

    prompt: str | list[TokenId | str | list[TokenId]]


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "logprobs": (False,),  # legacy completions: 0 asks for the logprob of each token
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "truncate_prompt_tokens": (),
}
"""Known fields that would change the result and cannot yet, with values that mean no change; null always does.

OpenAI's own, and those that vLLM adds. Values are equal only if their types are: 0 is not False.
"""

NEUTRAL_IN_MESSAGES: dict[str, tuple[Any, ...]] = {
    "name": (),
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "audio": (),
    "refusal": (),
}
"""The same for the fields of a message."""

T = TypeVar("T", bound=msgspec.Struct)
B = TypeVar("B", bound=Body)

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_FAULT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`")


def decode(payload: bytes, kind: type[B]) -> B:
    """Read the body of a request. Raises ApiError 400 that names the field."""
    body = read(payload, kind)
    fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    for name in fields:
        if name in NEUTRAL:
            _check_neutral(name, _value(fields[name]), NEUTRAL[name])
    if isinstance(body, ChatBody):
        for index, message in enumerate(body.messages):
            _check_message(message, f"messages[{index}]")
    if body.stream_options is not None and not body.stream:
        text = "stream_options is only allowed when stream is true"
        raise ApiError(400, "invalid_value", text, "stream_options")
    return body


def read(payload: bytes, kind: type[T]) -> T:
    """Read JSON into a strict type. Raises ApiError 400 that names the field."""
    try:
        body = msgspec.json.decode(payload, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_nesting(payload)
    return body


def components(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """The bodies as OpenAPI schemas, by name."""
    return msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")[1]


def _check_message(message: Message, path: str) -> None:
    for name, neutral in NEUTRAL_IN_MESSAGES.items():
        _check_neutral(f"{path}.{name}", getattr(message, name), neutral)
    if message.content is None:
        raise _missing(f"{path}.content")


def _check_neutral(param: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is not None and (type(value), value) not in [(type(same), same) for same in neutral]:
        raise ApiError(400, "unsupported_parameter", f"{param} is not supported yet with this value", param)


def _value(raw: msgspec.Raw) -> Any:
    """Of valid JSON. A number too large for any type stays as it is, and so is equal to nothing."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw


def _check_nesting(payload: bytes) -> None:
    """Bound the depth. Only for valid JSON: with a string that never ends the search would take quadratic time."""
    if payload.count(b"[") + payload.count(b"{") <= NESTING_MAX:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(payload):
        first = payload[match.start()]
        if first in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                raise _too_deep()
        elif first in b"]}":
            depth -= 1


def _too_deep() -> ApiError:
    return ApiError(400, "invalid_json", f"the body nests deeper than {NESTING_MAX} levels")


def _invalid(fault: str) -> ApiError:
    """Turn msgspec's `Expected ..., got ... - at $.a[0].b` into the API's shape."""
    match = _FAULT.fullmatch(fault)
    what, path = (match["what"], match["path"]) if match else (fault, None)
    if missing := _MISSING.fullmatch(what):
        return _missing(f"{path}.{missing['field']}" if path else missing["field"])
    if unknown := _UNKNOWN.fullmatch(what):
        field = unknown["field"]
        return ApiError(400, "unknown_parameter", f"{field[:64]} is not known here", field)
    code = "invalid_type" if ", got `" in what else "invalid_value"
    return ApiError(400, code, f"{path or 'the body'}: {what[:1].lower()}{what[1:]}", path or None)


def _missing(param: str) -> ApiError:
    return ApiError(400, "missing_required_parameter", f"{param} is required", param)
