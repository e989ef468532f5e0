"""What `response_format` asks of an answer, as the JSON schema that the groups are given."""

import msgspec

from router.errors import ApiError
from router.ports import Model
from router.schema import Format, JsonObjectFormat, TextFormat
from tandem.engine.grammar import JSON_OBJECT

GRAMMAR_BYTES = 64 * 1024


def grammar_of(asked: Format | None, model: Model) -> str:
    """The schema's text; empty when anything will do. Raises ApiError 400 for one that cannot be compiled."""
    if asked is None or isinstance(asked, TextFormat):
        return ""
    if model.check_grammar is None:
        raise ApiError(400, "unsupported_parameter", "this router cannot constrain answers", "response_format")
    text = JSON_OBJECT
    if not isinstance(asked, JsonObjectFormat):
        text = msgspec.json.encode(asked.json_schema.schema).decode()
    if len(text.encode()) > GRAMMAR_BYTES:
        raise _invalid(f"the schema is larger than {GRAMMAR_BYTES} bytes")
    try:
        model.check_grammar(text)
    except ValueError as error:
        raise _invalid(f"the schema cannot be used: {error}") from None
    return text


def _invalid(why: str) -> ApiError:
    return ApiError(400, "invalid_schema", f"response_format: {why}", "response_format")
