"""What to explore: ranks, and what surrounds them."""

from dataclasses import dataclass

from checking.environment import Environment, Where

from tandem.core.config import Group, Limits
from tandem.core.events import Event
from tandem.core.plan import Question

EXPLORED = "explored"
"""The property of a test that says what there was to see."""


@dataclass(frozen=True)
class Setting:
    """What to explore."""

    groups: tuple[Group, ...]
    limits: Limits
    around: Environment
    before: tuple[tuple[Where, Event], ...] = ()  # what ranks have heard before anything else
    warm: bool = False  # what leads to the end of all transfers is taken in one order, all orders begin there
    refuses: Question | None = None  # the last rank of each group says no when it is first asked this
    coarse: bool = False  # the layers of a forward and its end are one step of the engine, in prefill too
