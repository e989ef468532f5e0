"""A courier that now and then votes no where it could vote yes: it is short of something that only it knows of."""

from tandem.core.effects import Effect
from tandem.core.events import Event
from tandem.core.plan import Ask, Plan
from tandem.core.role import Courier
from tandem.sim.faults import Fault, Swarm

REFUSED = 0.1
"""Share of the votes."""


class Reluctant:
    """Fits `Courier`. A no reserves nothing, so the real one is not asked."""

    def __init__(self, courier: Courier, swarm: Swarm) -> None:
        self._courier = courier
        self._swarm = swarm

    def on_plan(self, plan: Plan) -> list[Effect]:
        """See Courier."""
        return self._courier.on_plan(plan)

    def on_event(self, event: Event) -> list[Effect]:
        """See Courier."""
        return self._courier.on_event(event)

    def answer(self, ask: Ask) -> bool:
        """See Courier."""
        return not self._swarm.strikes(Fault.REFUSED_VOTES, REFUSED) and self._courier.answer(ask)

    def open_rooms(self) -> int:
        """See Courier."""
        return self._courier.open_rooms()
