"""Generated parts of documents: they are up to date, and the diagrams say what their tables say."""

import enum

import pytest

from bench.diagrams import DIAGRAMS, diagram
from bench.documents import DOCS, PARTS, main, renewed, stale


def test_the_documents_are_up_to_date():
    assert list(stale()) == [], "run: python -m bench.documents"


def test_checking_says_so_too():
    assert main(["--check"]) == 0


def test_every_part_is_in_a_document():
    texts = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [name for name in PARTS if f"<!-- generated: {name} -->" not in texts] == []


def test_only_what_is_between_the_marks_is_renewed():
    text = "before\n<!-- generated: receiving-states -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    new = renewed(text)
    assert new.startswith("before\n<!-- generated: receiving-states -->\n\n```mermaid\n")
    assert new.endswith("```\n\n<!-- end -->\nafter <!-- end -->\n")
    assert renewed(new) == new


def test_a_part_that_nobody_makes_is_named():
    with pytest.raises(KeyError, match="nothing"):
        renewed("<!-- generated: nothing -->\n<!-- end -->")


class Light(enum.Enum):
    OFF = "off"
    FULLY_ON = "fully on"
    BROKEN = "broken"


class Hand(enum.Enum):
    PUSH = "push"
    PULL = "pull"
    HIT = "hit"


def test_a_diagram_of_a_small_table():
    table = {
        (Light.OFF, Hand.PUSH): Light.FULLY_ON,
        (Light.OFF, Hand.PULL): Light.FULLY_ON,
        (Light.FULLY_ON, Hand.PUSH): Light.OFF,
        (Light.FULLY_ON, Hand.HIT): Light.BROKEN,
    }
    assert diagram(table).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        '    state "fully on" as fully_on',
        "    [*] --> off",
        "    off --> fully_on: push, pull",
        "    fully_on --> off: push",
        "    fully_on --> broken: hit",
        "    broken --> [*]",
        "```",
    ]


@pytest.mark.parametrize("name", DIAGRAMS)
def test_every_state_and_input_is_drawn(name: str):
    drawn = diagram(DIAGRAMS[name])
    for (state, happened), following in DIAGRAMS[name].items():
        assert all(word.value in drawn for word in (state, happened, following))
