"""State tables as Mermaid diagrams, so that a picture in a document never says anything else than the code."""

import enum
from collections.abc import Mapping
from typing import Any

from colocated import request
from decode import intake
from kvtransfer import breaker, session
from prefill import handoff

Table = Mapping[Any, enum.Enum]
"""(state, input) to the next state."""

DIAGRAMS: dict[str, Table] = {
    "decode": intake.NEXT,
    "colocated": request.NEXT,
    "prefill": handoff.NEXT,
    "sending": session.SEND_NEXT,
    "receiving": session.RECEIVE_NEXT,
    "breaker": breaker.BREAKER_NEXT,
}
"""The state machines by name. Each begins in the first state of its table."""


def diagram(table: Table) -> str:
    """One `stateDiagram-v2`, with one arrow for all inputs between two states. A state without a way out is an end."""
    arrows: dict[tuple[enum.Enum, enum.Enum], list[str]] = {}
    for (state, happened), following in table.items():
        arrows.setdefault((state, following), []).append(happened.value)
    start = next(iter(table))[0]
    named = dict.fromkeys(state for arrow in arrows for state in arrow)
    left = {state for state, _ in arrows}
    lines = [f'    state "{state.value}" as {name(state)}' for state in named if name(state) != state.value]
    lines.append(f"    [*] --> {name(start)}")
    lines += [f"    {name(one)} --> {name(other)}: {', '.join(inputs)}" for (one, other), inputs in arrows.items()]
    lines += [f"    {name(state)} --> [*]" for state in named if state not in left]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def name(state: enum.Enum) -> str:
    """An identifier for Mermaid."""
    return str(state.name).lower()
