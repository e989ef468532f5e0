"""What ranks make of events: computed once by the production code for each state of a rank, then looked up.

A rank sees nothing but its own state, the event and the time, so this is sound, and it is what makes the search fast:
there are few states of one rank in very many states of all.
"""

from collections.abc import Sequence
from typing import NamedTuple

from checking.counters import set_back
from checking.frozen import Frozen, freeze, shift, thaw
from checking.node import Node, Taken
from checking.numbers import Numbers
from checking.summary import Summary, in_ticks_of, summary

from tandem.core.ids import Room


class Step(NamedTuple):
    """A rank's next state, what came of the event, and by how much ticks are to be counted anew: rank 0's is 0."""

    node: int
    taken: Taken
    ticks: int


class Ranks:
    """All states of ranks that have been reached, by number. So are messages; number 0 is none."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self.messages = Numbers(None)
        self._rooms = rooms
        self._nodes = Numbers(None)
        self._summaries: dict[int, Summary] = {}
        self._steps: dict[tuple[int, str, int, int], Step | Exception] = {}
        self._shifted: dict[tuple[int, int], int] = {}

    def keep(self, node: Node) -> int:
        """The number of a live rank's state."""
        set_back(node)
        frozen = freeze(node)
        if node.rank.place.first:
            frozen = shift(frozen, int(node.rank.scheduler.tick))
        number = self._nodes(frozen)
        if number not in self._summaries:
            self._summaries[number] = summary(node, frozen, self._rooms)
        return number

    def step(self, node: int, method: str, message: int, now_ms: int) -> Step:
        """Let a rank take an event. Raises whatever it raises."""
        key = node, method, message, now_ms
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._run(node, method, message, now_ms)
        if isinstance(found, Exception):
            raise found
        return found

    def _run(self, number: int, method: str, message: int, now_ms: int) -> Step | Exception:
        node: Node = thaw(self._nodes.values[number])
        call = getattr(node, method)
        try:
            taken = call(self.messages.values[message], now_ms) if message else call(now_ms)
            return Step(self.keep(node), taken, int(node.rank.scheduler.tick) if node.rank.place.first else 0)
        except Exception as error:  # noqa: BLE001  whatever it is, it is what was looked for
            return error

    def shifted(self, number: int, ticks: int) -> int:
        """The same state of a rank, with ticks counted from a later one."""
        key = number, ticks
        if key not in self._shifted:
            frozen = shift(self._nodes.values[number], ticks)
            later = self._shifted[key] = self._nodes(frozen)
            if later not in self._summaries:
                self._summaries[later] = in_ticks_of(frozen, self._summaries[number])
        return self._shifted[key]

    def summary(self, number: int) -> Summary:
        """What invariants need to know of a state."""
        return self._summaries[number]

    def value(self, number: int) -> Frozen:
        """The state itself."""
        value: Frozen = self._nodes.values[number]
        return value
