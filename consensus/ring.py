"""Two-pass ring votes: the ballot is folded while the baton travels, the folded ballot comes back in a later frame.

A ballot is a bitmask: bit i says yes to question i of the list that the step before it asked. Every rank holds the same
list, so positions need no names on the wire.
"""

from tandem.core.errors import Divergence
from tandem.core.ids import Tick
from tandem.core.inputs import Outcome
from tandem.core.plan import Ask


def fold(ballot: int, answers: list[bool]) -> int:
    """A rank adds its answers: one no is a no."""
    mine = sum(1 << index for index, yes in enumerate(answers) if yes)
    return ballot & mine


def unanimous(questions: int) -> int:
    """The ballot before anyone has answered."""
    return (1 << questions) - 1


class OpenVotes:
    """Questions whose outcome has not come back, by the tick whose baton carries them. Replicated."""

    def __init__(self) -> None:
        self._asked: dict[Tick, tuple[Ask, ...]] = {}

    def open(self, tick: Tick, asks: tuple[Ask, ...]) -> None:
        """These questions ride on baton `tick`."""
        if asks:
            self._asked[tick] = asks

    def on_baton(self, tick: Tick) -> tuple[Ask, ...]:
        """What the ballot of this baton asks; empty when it carries none."""
        return self._asked.get(tick, ())

    def close(self, outcome: Outcome) -> list[tuple[Ask, bool]]:
        """The outcome is in. Raises Divergence for a vote that is not open."""
        asks = self._asked.pop(outcome.tick, None)
        if asks is None:
            raise Divergence(f"a ballot of tick {outcome.tick} came back, but no vote of that tick is open")
        return [(ask, bool(outcome.yes >> index & 1)) for index, ask in enumerate(asks)]

    def oldest(self) -> Tick | None:
        """The baton of the vote that has been open longest."""
        return next(iter(self._asked), None)

    def __len__(self) -> int:
        return len(self._asked)
