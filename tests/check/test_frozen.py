"""Freezing a state and thawing it again."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import pytest
from checking.frozen import Count, freeze, part, shift, thaw


class Box:
    """Something that changes."""

    def __init__(self, content: object) -> None:
        self.content = content


@dataclass(slots=True)
class Tray:
    """Something else."""

    boxes: list[Box] = field(default_factory=list)


class Note(msgspec.Struct, frozen=True):
    """A value."""

    tick: int


class Loose(msgspec.Struct):
    """No value: it can change."""

    tick: int


def test_a_state_comes_back_as_it_was():
    state = {"a": [1, (2, None)], Note(3): deque([Box(True)], 5)}
    again = thaw(freeze(state))
    assert freeze(again) == freeze(state)
    assert again["a"] == [1, (2, None)]
    assert again[Note(3)].maxlen == 5


def test_what_is_shared_stays_shared():
    box = Box(1)
    tray, alone = thaw(freeze([Tray([box, box]), Tray([Box(1), Box(1)])]))
    assert tray.boxes[0] is tray.boxes[1]
    assert alone.boxes[0] is not alone.boxes[1]


@pytest.mark.parametrize("shared", [{}, [1], deque([1], 2)], ids=lambda shared: type(shared).__name__)
def test_a_shared_container_stays_shared(shared: object):
    first, second = thaw(freeze([Box(shared), Box(shared)]))
    assert first.content is second.content


def test_sharing_is_part_of_the_value():
    box = Box(1)
    assert freeze([box, box]) != freeze([Box(1), Box(1)])


def test_what_is_thawed_is_not_what_was_frozen():
    box = Box([1])
    frozen = freeze(box)
    thaw(frozen).content.append(2)
    assert freeze(box) == frozen


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param({1, 2}, id="a set"),
        pytest.param(len, id="a function"),
        pytest.param(Box(lambda: 1), id="a function inside"),
        pytest.param(Loose(1), id="a struct that can change"),
        pytest.param(0.5, id="a float"),
        pytest.param([object()], id="an object without attributes"),
    ],
)
def test_what_is_not_plain_state_raises(thing: object):
    with pytest.raises(TypeError):
        freeze(thing)


def test_an_attribute_of_one_instance_alone_raises():
    """A plant on an instance, say: it could not be thawed."""
    freeze(Box(1))
    box = Box(1)
    box.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="other attributes"):
        freeze(box)


def test_only_ticks_are_shifted():
    state = [Count(5), 5, Note(Count(5)), {Count(6): (Note(4), Box(Count(7) + 1))}]
    assert shift(freeze(state), 5) == freeze([Count(0), 5, Note(Count(0)), {Count(1): (Note(4), Box(Count(3)))}])


def test_a_part_is_found_by_names():
    assert part(freeze(Box(Tray([]))), Box, "content", Tray, "boxes") == (list,)
