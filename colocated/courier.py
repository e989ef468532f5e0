"""The local half of a colocated rank: KV stays where it is computed, so there is nothing to carry."""

from tandem.core.effects import Effect
from tandem.core.errors import IllegalTransition
from tandem.core.events import Event
from tandem.core.plan import Ask, Plan


class NoCourier:
    """Does nothing, and is asked nothing."""

    def on_plan(self, plan: Plan) -> list[Effect]:
        """No note of a plan concerns KV elsewhere."""
        del plan
        return []

    def on_event(self, event: Event) -> list[Effect]:
        """Nor does an event."""
        del event
        return []

    def answer(self, ask: Ask) -> bool:
        """A colocated group asks for no vote."""
        raise IllegalTransition(f"{ask} was asked, but nothing is transferred here")

    def open_rooms(self) -> int:
        """Nothing is kept."""
        return 0
