"""The request bodies of the OpenAI API, as strict types; a body that does not fit is answered with the field's name."""

import logging
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from router.errors import ApiError
from tandem.core.requests import Priority, Salt

NESTING_MAX = 64
MESSAGES_MAX = 1024
FORMAT_BYTES = 80 * 1024
"""Of response_format as a whole, so that nothing is tokenised for one that is refused for its size."""
N_MAX = 8
BIASES_MAX = 1024
LOGPROBS_MAX = 20

Stop = Annotated[str, Meta(min_length=1, max_length=256)]
TokenId = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]

log = logging.getLogger("tandem.router")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Anything."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Some JSON object."""


class JsonSchema(msgspec.Struct):
    name: Annotated[str, Meta(max_length=64)]
    schema: dict[str, msgspec.Raw]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: JsonSchema


Format = TextFormat | JsonObjectFormat | JsonSchemaFormat


class Body(msgspec.Struct, kw_only=True):
    """What chat and completions share. Null means absent, as everywhere in this API."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    n: Annotated[int, Meta(ge=1, le=N_MAX)] | None = None  # choices for each prompt
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None  # 0 and -1: all tokens
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=BIASES_MAX)] | None = None  # by token id, as a string
    response_format: Format | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Priority | None = None  # higher goes first
    cache_salt: Salt | None = None  # prompts of different salts share nothing


Role = Literal["system", "developer", "user", "assistant"]


class TextPart(msgspec.Struct):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, kw_only=True):
    role: Role
    content: str | list[TextPart] | None = None  # required; absent where the message is refused for another field
    name: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    audio: Any = None
    refusal: Any = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MESSAGES_MAX)]


class ChatBody(Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None


class CompletionBody(Body, kw_only=True):
    """POST /v1/completions. A list holds the token ids of one prompt, or several prompts: texts, or lists of ids."""

    prompt: str | list[TokenId | str | list[TokenId]]
    echo: bool | None = None  # the prompt's text before its answer
    logprobs: Annotated[int, Meta(ge=0, le=LOGPROBS_MAX)] | None = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "length_penalty": (1, 1.0),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
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

OpenAI's own, and those that vLLM adds; what the endpoint itself has is not meant. Values are equal only if their types
are: 0 is not False.
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

ALLOWED = {
    "messages[].role": get_args(Role),
    "messages[].content[].type": ("text",),
    "response_format.type": tuple(str(each.__struct_config__.tag) for each in get_args(Format)),
}
"""Of fields that have a few words for values: which. msgspec does not say it."""

T = TypeVar("T", bound=msgspec.Struct)
B = TypeVar("B", bound=Body)

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_FAULT = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_INDEX = re.compile(r"\[[0-9.]+\]")
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`")


def decode(payload: bytes, kind: type[B]) -> B:
    """Read the body of a request. Raises ApiError 400 that names the field."""
    body = read(payload, kind)
    fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    for name in fields:
        if name in kind.__struct_fields__:
            continue
        if name in NEUTRAL:
            _check_neutral(name, _value(fields[name]), NEUTRAL[name])
        else:
            log.debug("a field of the request is not known and ignored: %r", name[:64])
    if len(fields.get("response_format", b"")) > FORMAT_BYTES:
        text = f"response_format is larger than {FORMAT_BYTES} bytes"
        raise ApiError(400, "invalid_schema", text, "response_format")
    if isinstance(body, ChatBody):
        check_messages(body.messages)
    if body.stream_options is not None and not body.stream:
        text = "stream_options is only allowed when stream is true"
        raise ApiError(400, "invalid_value", text, "stream_options")
    return body


def read(payload: bytes, kind: type[T]) -> T:
    """Read JSON into a strict type. Raises ApiError 400 that names the field."""
    try:
        payload.decode()  # msgspec does not look into what it skips
        body = msgspec.json.decode(payload, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_nesting(payload)
    return body


def check_messages(messages: Sequence[Message]) -> None:
    """Raises ApiError 400 that names the first field that is missing, or would change the result and cannot."""
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


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
    if code == "invalid_value" and (allowed := ALLOWED.get(_INDEX.sub("[]", path or ""))):
        what += f": give one of {', '.join(allowed)}"
    path = (path or "").removesuffix("[...]")  # a key of a client's own
    return ApiError(400, code, f"{path or 'the body'}: {what[:1].lower()}{what[1:]}", path or None)


def _missing(param: str) -> ApiError:
    return ApiError(400, "missing_required_parameter", f"{param} is required", param)
