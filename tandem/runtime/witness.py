"""A courier that tells a timeline what its rank plans, votes and does about KV."""

import time

from tandem.core.effects import Effect
from tandem.core.events import Event
from tandem.core.plan import Ask, Plan
from tandem.core.role import Courier
from tandem.runtime.timeline import Timeline


class Witness:
    """Fits `Courier`, of which every rank has one, and changes nothing: all is left to the real one."""

    def __init__(self, courier: Courier, timeline: Timeline) -> None:
        self._courier = courier
        self._timeline = timeline

    def on_plan(self, plan: Plan) -> list[Effect]:
        """See Courier."""
        self._timeline.on_plan(now_us(), plan)
        return self._tell(self._courier.on_plan(plan))

    def on_event(self, event: Event) -> list[Effect]:
        """See Courier."""
        return self._tell(self._courier.on_event(event))

    def answer(self, ask: Ask) -> bool:
        """See Courier."""
        yes = self._courier.answer(ask)
        self._timeline.on_vote(now_us(), ask, yes)
        return yes

    def open_rooms(self) -> int:
        """See Courier."""
        return self._courier.open_rooms()

    def _tell(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            self._timeline.on_effect(now_us(), effect)
        return effects


def now_us() -> int:
    """Microseconds since 1970, by this host's clock: the only one that ranks of two groups have in common."""
    return time.time_ns() // 1000
