"""A state machine is a table of (state, input) to the next state; this is how it is followed."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from tandem.core.errors import IllegalTransition

S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741  input


def follow(table: Mapping[tuple[S, I], S], state: S, happened: I, who: object) -> S:
    """The next state. Raises IllegalTransition, naming who it is about, when the table has no such row."""
    try:
        return table[state, happened]
    except KeyError:
        raise IllegalTransition(f"{who} is {state.value}: it cannot take {happened.value}") from None
