"""Which JSON schemas are taken as grammars."""

import json
import subprocess
import sys

import pytest

from tandem.engine import grammar
from tandem.engine.grammar import JSON_OBJECT, MOST_CHARS, GrammarError, check


@pytest.mark.parametrize(
    "schema",
    [
        JSON_OBJECT,
        "{}",
        '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}',
        '{"enum":["yes","no"]}',
        '{"$defs":{"x":{"type":"string"}},"type":"array","items":{"$ref":"#/$defs/x"}}',
        '{"type":"string","pattern":"[a-z]{2,5}"}',
    ],
)
def test_a_schema_is_taken(schema: str):
    check(schema)


BAD = {
    "": "not JSON",
    "no json": "not JSON",
    "true": "not a JSON object",
    "[]": "not a JSON object",
    '"\ud800"': "not JSON",
    "[" * 100_000: "not JSON",
    '{"type":"objekt"}': "objekt",
    '{"type":"string","pattern":"(a"}': "regex",
    '{"$ref":"#/$defs/nothing"}': "nothing",
    '{"$ref":"http://localhost/schema"}': "fetch",
    '{"allOf":[{"type":"string"},{"type":"integer"}]}': "nsatisfiable",
    '{"type":"object"},"lark_grammar":"start: /a/"': "not JSON",
}


@pytest.mark.parametrize(("schema", "what"), BAD.items(), ids=range(len(BAD)))
def test_what_is_wrong_with_a_schema_is_said(schema: str, what: str):
    for _ in range(2):
        with pytest.raises(GrammarError, match=what):
            check(schema)


def test_a_schema_that_is_too_long_is_refused_by_its_length():
    with pytest.raises(GrammarError, match=str(MOST_CHARS)):
        check(json.dumps({"const": "x" * MOST_CHARS}))


@pytest.mark.parametrize("limit", ["GRAMMAR_SIZE", "LEXER_FUEL"])
def test_a_schema_that_costs_too_much_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar, limit, 10)
    with pytest.raises(GrammarError, match=r"(?i)limit|too"):
        check(json.dumps({"type": "object", "properties": {f"{limit} {number}": {} for number in range(100)}}))


def test_routers_can_check_without_torch():
    code = "import sys; from tandem.engine.grammar import check; check('{}'); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


# what would take for ever: each of these kept a thread for minutes, or for hours


def looking_back(number: int) -> dict[str, str]:
    """A pattern whose intersection with others like it doubles with each of them."""
    return {"type": "string", "pattern": f"^(.*a.{{{number}}})?[^z]*$"}


def nested(depth: int) -> dict[str, object]:
    """Each level has a pattern for the levels below, and these for those below them."""
    return {**looking_back(depth), **({"anyOf": [nested(depth - 1), {"type": "string"}]} if depth else {})}


def shifted(depth: int) -> dict[str, object]:
    """Under itself, one level down: the string at a depth has to fit the patterns of all depths before it."""
    below: dict[str, object] = {}
    for number in range(depth):
        below = {"anyOf": [looking_back(number), {"properties": {"x": below}}]}
    return {"allOf": [below, {"properties": {"x": {"$ref": "#"}}}]}


def sixty() -> dict[str, object]:
    """Each level is referred to, and has all that is below it: to look at all is much work for nothing."""
    level: dict[str, object] = {"properties": {str(number): looking_back(number) for number in range(300)}}
    for depth in reversed(range(60)):
        level = {"items": level, "properties": {"x": {"$ref": "#" + "/items" * depth}}}
    return level


COSTLY = {
    "at once": {"allOf": [looking_back(number) for number in range(24)]},
    "one in another": nested(24),
    "of one property": {"allOf": [{"properties": {"a": looking_back(number)}} for number in range(24)]},
    "by reference": {
        "allOf": [{"$ref": f"#/$defs/{number}"} for number in range(24)],
        "$defs": {str(number): looking_back(number) for number in range(24)},
    },
    "by a chain of references": {
        "$ref": "#/$defs/23",
        "$defs": {
            str(number): {"allOf": [looking_back(number), {"$ref": f"#/$defs/{number - 1}"} if number else {}]}
            for number in range(24)
        },
    },
    "by references that turn in a circle": shifted(24),
    "by an anchor": {
        "allOf": [looking_back(0), {"$ref": "#all"}],
        "$defs": {"all": {"$anchor": "all", "anyOf": [looking_back(number) for number in range(24)]}},
    },
    "by reference to what refers to it, in sixty places": sixty(),
    "names": {"patternProperties": {f"^{number:04}.*$": {"type": "integer"} for number in range(400)}},
    "names of many": {
        "prefixItems": [{"patternProperties": {f"^{number}_{at}.*$": {} for at in range(4)}} for number in range(100)]
    },
}

COSTLY |= {
    f"multiples {number}": schema
    for number, schema in enumerate(
        [
            {"multipleOf": 99_999_989},
            {"multipleOf": 0.0100003},
            {"multipleOf": 10**300},
            {"multipleOf": 1e-300},
            {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
            {"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {"multipleOf": 991}}},
            {"anyOf": [{"multipleOf": 5000, "minimum": number} for number in range(40)]},
        ]
    )
}


@pytest.mark.parametrize("schema", COSTLY.values(), ids=COSTLY.keys())
def test_patterns_that_meet_in_too_great_a_number_are_refused_unseen(
    schema: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grammar, "source", lambda schema: pytest.fail("llguidance gets it"))
    with pytest.raises(GrammarError, match="more than"):
        check(json.dumps(schema))


PATTERNS = [{"type": "string", "pattern": f"^[a-z]{{{number},30}}$"} for number in range(24)]

HARMLESS = {
    "apart": {"type": "object", "properties": {str(number): each for number, each in enumerate(PATTERNS)}},
    "alternatives": {"anyOf": PATTERNS},
    "optional": {
        "type": "object",
        "properties": {
            str(number): {"anyOf": [{"$ref": f"#/$defs/{number}"}, {"type": "null"}], "title": "A", "default": None}
            for number in range(24)
        },
        "$defs": {str(number): each for number, each in enumerate(PATTERNS)},
    },
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    **{str(number): each for number, each in enumerate(PATTERNS)},
                    "below": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
            }
        },
    },
    "multiples": {"anyOf": [{"type": "number", "multipleOf": step} for step in (0.01, 0.5, 1, 5, 60, 1000.0)]},
    "a few at once": {"allOf": [*PATTERNS[:3], {"minLength": 3}]},
    "called like keywords": {"type": "object", "properties": {"pattern": PATTERNS[0], "allOf": PATTERNS[1]}},
}


@pytest.mark.parametrize("schema", HARMLESS.values(), ids=HARMLESS.keys())
def test_many_patterns_that_do_not_meet_are_taken(schema: dict[str, object]):
    check(json.dumps(schema))
