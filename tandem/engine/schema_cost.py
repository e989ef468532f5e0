"""What a JSON schema would cost where no limit of llguidance stops it: patterns that meet, and multiples.

Compiling an intersection takes time that doubles, or worse, with every pattern in it: twenty of a dozen characters each
keep a thread for hours. Patterns of names are compared each with each, wherever their schema stands: four hundred take
minutes. Multiples of a number are counted out, a state for each remainder: those of a hundred million fill the memory.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

MOST_MEETING = 8
"""Patterns that one string may have to fit: a fraction of a second. Ordinary schemas have one or two."""
MOST_NAMES = 16
"""Patterns of names in a whole schema."""
MOST_REMAINDERS = 10_000
"""Of one multipleOf, or of those that meet. Counted out in hundredths of a second..."""
MOST_COUNTED = 10 * MOST_REMAINDERS
"""... and of all, one after another."""
DIGITS = 30
"""Before or behind the point of what multipleOf says; more is too much in any case."""
PASSES = 64
"""Over the schemas that are referred to, until no bound grows any more; only long chains of references need more."""
STEPS = 30_000
"""In all of them: a tenth of a second."""

OF_STRINGS = ("pattern", "format", "minLength", "maxLength")
OF_NUMBERS = ("multipleOf", "properties", "patternProperties", "additionalProperties", "items", "prefixItems")
"""What says something of numbers, or of what has numbers in it."""
ALTERNATIVES = ("anyOf", "oneOf")
ELSEWHERE = ("allOf", *ALTERNATIVES, "$ref", "$defs", "definitions", "properties", "patternProperties")
"""Keys that are looked at in another place, or when somebody refers to what is there..."""
SAYS_NOTHING = ("const", "enum", "default", "examples", "example", "required")
"""... and those without schemas."""


def excess(schema: Mapping[str, Any]) -> str:
    """What is too much; empty when nothing is. Raises RecursionError for a schema that is too deep."""
    if _names(schema) > MOST_NAMES:
        return f"patternProperties has more than {MOST_NAMES} patterns in all"
    if _remainders(schema) > MOST_REMAINDERS:
        return f"multipleOf needs more than {MOST_REMAINDERS} remainders: give rounder numbers, or fewer"
    if most_meeting(schema) > MOST_MEETING:
        return f"one string may have to fit more than {MOST_MEETING} of pattern, format and length"
    return ""


def most_meeting(schema: Mapping[str, Any]) -> int:
    """At least as many as one string may have to fit; MOST_MEETING + 1 stands for all larger numbers.

    No string has to fit more patterns than there are different ones.
    """
    return _Bounds(schema).root() if len(set(_patterns(schema))) > MOST_MEETING else 0


def _patterns(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for node in _objects(schema):
        yield from ((key, node[key]) for key in OF_STRINGS if isinstance(node.get(key), str | int | float))


def _names(schema: Mapping[str, Any]) -> int:
    found = (node.get("patternProperties") for node in _objects(schema))
    return sum(len(names) for names in found if isinstance(names, Mapping))


def _remainders(schema: Mapping[str, Any]) -> int:
    """Of what needs most; where schemas may meet, of the least common multiple of all, in the smallest place in use."""
    objects = list(_objects(schema))
    found = [node["multipleOf"] for node in objects if type(node.get("multipleOf")) in (int, float)]
    said = [Decimal(str(number)).normalize() for number in found if 0 < abs(number) < math.inf]
    if any(abs(number.adjusted()) > DIGITS for number in said):
        return MOST_REMAINDERS + 1
    alone = [_whole(number, _place(number)) for number in said]
    if sum(alone) > MOST_COUNTED:
        return MOST_REMAINDERS + 1
    if any(map(_combines, objects)):
        place = max(map(_place, said), default=0)
        return math.lcm(*(_whole(number, place) for number in said))
    return max(alone, default=0)


def _place(number: Decimal) -> int:
    """Digits behind the point."""
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _whole(number: Decimal, place: int) -> int:
    return abs(int(number.scaleb(place)))


def _combines(node: Mapping[str, Any]) -> bool:
    """Whether what it says itself may meet what others say."""
    others = any(key in node for key in ("$ref", *ALTERNATIVES))
    return "allOf" in node or (others and any(key in node for key in OF_NUMBERS))


def _objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every JSON object in it, schema or not."""
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


class _Bounds:
    """Of a schema that is combined from others, the sum of theirs; of one of several, the largest.

    What references stand for is found in passes, since schemas may refer to themselves: bounds only grow, and those
    that would grow for ever are too large.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._known: dict[str, int] = {}
        self._steps = 0

    def root(self) -> int:
        """Of the whole schema."""
        for _ in range(PASSES):
            before = dict(self._known)
            found = self._of(self._schema)
            for reference in list(self._known):
                self._known[reference] = self._of(_target(self._schema, reference))
            if self._steps > STEPS:
                break
            if self._known == before:
                return found
        return MOST_MEETING + 1

    def _of(self, node: Any) -> int:
        if isinstance(node, list):
            return max(map(self._of, node), default=0)
        if not isinstance(node, Mapping):
            return 0
        self._steps += 1
        if self._steps > STEPS:
            return MOST_MEETING + 1
        parts = [self._own(node), *map(self._of, _listed(node.get("allOf")))]
        parts += [self._of(node.get(key)) for key in ALTERNATIVES]
        if isinstance(reference := node.get("$ref"), str):
            parts.append(self._known.setdefault(reference, 0))
        return min(sum(parts), MOST_MEETING + 1)

    def _own(self, node: Mapping[str, Any]) -> int:
        """Of what it says itself. A property may have to fit what is said of its name, and of names like its own."""
        alike = self._of_values(node.get("patternProperties"))
        properties = self._of_values(node.get("properties"))
        others = (self._of(node[key]) for key in node if key not in (*ELSEWHERE, *SAYS_NOTHING))
        here = sum(key in node for key in ("pattern", "format")) + ("minLength" in node or "maxLength" in node)
        return max(here, alike + properties, *others, 0)

    def _of_values(self, node: Any) -> int:
        return max(map(self._of, node.values()), default=0) if isinstance(node, Mapping) else 0


def _listed(node: Any) -> list[Any]:
    return node if isinstance(node, list) else []


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    """What a pointer into the schema stands for; any other reference, for more than may be."""
    if not reference.startswith("#"):
        return TOO_MUCH
    node: Any = schema
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, Mapping) and name in node:
            node = node[name]
        else:
            return TOO_MUCH
    return node


TOO_MUCH = {"allOf": [{"pattern": str(number)} for number in range(MOST_MEETING + 1)]}
