"""What an answer must be, as a JSON schema: whether it can be compiled. By llguidance; routers use it, too."""

import functools
from typing import Any

import msgspec

from tandem.engine.schema_cost import excess

MOST_CHARS = 1 << 18
"""Of a schema."""
JSON_OBJECT = '{"type":"object"}'
"""What `response_format` json_object asks for."""
WHITE_SPACE = "[ ]?"
"""Between tokens of JSON: small models would go on with more of it for ever."""
GRAMMAR_SIZE, LEXER_FUEL, LEXER_STATES = 200_000, 1_000_000, 50_000
"""Limits of one grammar: symbols, work to begin with (50,000 a millisecond), and memory (1 or 2 KB each)."""


class GrammarError(ValueError):
    """The schema is none, asks for what cannot be compiled, or is too large. The text says what is wrong."""


def check(schema: str) -> None:
    """Raises GrammarError for a schema that cannot be compiled. From any thread; what was checked is remembered."""
    if len(schema) > MOST_CHARS:
        raise GrammarError(f"the schema has {len(schema)} characters: at most {MOST_CHARS} are allowed")
    if fault := _fault(schema):
        raise GrammarError(fault)


@functools.lru_cache(maxsize=64)
def _fault(schema: str) -> str:
    """What is wrong with it, if anything. It is parsed here first: llguidance would paste it into a larger document."""
    from llguidance import LLMatcher

    try:
        parsed = msgspec.json.decode(schema)
        too_much = excess(parsed) if isinstance(parsed, dict) else "the schema is not a JSON object"
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return f"the schema is not JSON: {error}"
    if too_much:
        return too_much
    failed, messages = LLMatcher.validate_grammar_with_warnings(source(schema), None, limits=limits())
    return "; ".join(messages) if failed else ""


def source(schema: str) -> str:
    """A schema that is a JSON object, as llguidance reads it."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": False,
            "whitespace_pattern": WHITE_SPACE,
            "item_separator": ",",
            "key_separator": ":",
        },
    )


def limits() -> Any:
    """What a grammar may cost, so that none holds a group up."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=LEXER_FUEL,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SIZE,
        verbose_errors=False,
    )
