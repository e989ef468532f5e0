"""Ticks in flight: which slot each occupies and which rows it carries."""

from collections.abc import Sequence

from tandem.core.errors import IllegalTransition
from tandem.core.ids import NO_SLOT, Slot, Tick
from tandem.core.plan import Row


class Flights:
    """Launched ticks whose return has not been applied yet, oldest first."""

    def __init__(self) -> None:
        self._flights: dict[Tick, tuple[Slot, Sequence[Row]]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def launch(self, tick: Tick, slot: Slot, rows: Sequence[Row]) -> None:
        """Rows of `tick` are on their way through the ring."""
        self._flights[tick] = (slot, rows)

    def land(self, tick: Tick) -> Sequence[Row]:
        """The oldest tick came back. Raises IllegalTransition if it is not `tick`."""
        oldest = next(iter(self._flights), None)
        if oldest != tick:
            raise IllegalTransition(f"harvest of tick {tick}, but the oldest in flight is {oldest}")
        return self._flights.pop(tick)[1]

    def busy(self, returned: frozenset[Tick] = frozenset()) -> set[Slot]:
        """Slots that cannot be named: a tick of theirs is out, and is not among `returned`. For membership only."""
        return {slot for tick, (slot, _) in self._flights.items() if tick not in returned and slot != NO_SLOT}
