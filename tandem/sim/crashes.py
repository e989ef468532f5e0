"""Named points of a request's life at which something can happen to a rank: before, amid or after what it does."""

import enum
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tandem.core.effects import Effect, Launch, Observe, SendNext, TellPeer
from tandem.core.events import Event, LayerRan, Moved, Started
from tandem.core.inputs import Submit
from tandem.core.messages import BallotBack, Baton, Commit, Grant, Progress
from tandem.sim.faults import Swarm

if TYPE_CHECKING:
    from tandem.sim.node import Node


class Point(enum.Enum):
    """Where a rank is. `re-forming` is no moment of a request, and is looked for where groups form."""

    QUEUE = "queue"
    BOOTSTRAP = "bootstrap"
    MID_FORWARD = "mid forward"
    MID_LAYER = "mid layer"
    BEFORE_COMMIT = "before commit"
    AFTER_COMMITS = "after commits"
    MID_DECODE = "mid decode"
    VOTE = "during a vote"
    RE_FORMING = "during re-forming"


def _votes(message: object) -> bool:
    return isinstance(message, BallotBack) or (isinstance(message, Baton) and message.ballot is not None)


def _queued(event: Event, effects: Sequence[Effect]) -> bool:
    if isinstance(event, Baton):
        return any(isinstance(arrival, Submit) for arrival in event.frame.arrivals)
    return isinstance(event, Submit)


def _bootstraps(event: Event, effects: Sequence[Effect]) -> bool:
    """Pages are granted here, or the grants have come."""
    return any(
        (isinstance(effect, TellPeer) and isinstance(effect.message, Grant))
        or (isinstance(effect, Observe) and effect.fact.progress is Progress.WAITING_FOR_INPUT)
        for effect in effects
    )


def _has_all(event: Event, effects: Sequence[Effect]) -> bool:
    """All has landed here, or nothing more will be sent."""
    said = [effect.fact for effect in effects if isinstance(effect, Observe)]
    return any(fact.progress is Progress.SUCCESS or fact.quiet for fact in said)


def _voting(event: Event, effects: Sequence[Effect]) -> bool:
    return _votes(event) or any(isinstance(effect, SendNext) and _votes(effect.message) for effect in effects)


def _decodes(event: Event, effects: Sequence[Effect]) -> bool:
    """A forward begins that adds one token to each of its texts."""
    plans = [effect.plan for effect in effects if isinstance(effect, Launch)]
    return any(len(row.tokens) == 1 for plan in plans for row in plan.rows)


IS_AT: dict[Point, Callable[[Event, Sequence[Effect]], bool]] = {
    Point.QUEUE: _queued,
    Point.BOOTSTRAP: _bootstraps,
    Point.MID_FORWARD: lambda event, effects: isinstance(event, Started),
    Point.MID_LAYER: lambda event, effects: isinstance(event, LayerRan),
    Point.BEFORE_COMMIT: lambda event, effects: isinstance(event, Moved | Commit),
    Point.AFTER_COMMITS: _has_all,
    Point.MID_DECODE: _decodes,
    Point.VOTE: _voting,
}


class Doom:
    """Waits for a rank's being at a point for the nth time, and then strikes, between any two effects of the event."""

    def __init__(
        self, point: Point, nth: int, strike: "Callable[[Node], None]", swarm: Swarm, rng: random.Random
    ) -> None:
        self.strike = strike
        self._is_at = IS_AT[point]
        self._nth = nth
        self._swarm = swarm
        self._rng = rng

    def kept(self, event: Event, effects: Sequence[Effect]) -> int | None:
        """How many of the effects are carried out before it strikes; None: it does not."""
        if not self._swarm.acting or not self._is_at(event, effects):
            return None
        self._nth -= 1
        return None if self._nth > 0 else self._rng.randint(0, len(effects))
