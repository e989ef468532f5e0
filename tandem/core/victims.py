"""Who makes room when requests cannot grow: the latest of all slots, and no more of them than it takes."""

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from tandem.core.ids import Room, Slot


class Ranked(Protocol):
    """What the choice looks at."""

    @property
    def room(self) -> Room: ...

    @property
    def slot(self) -> Slot: ...

    @property
    def order(self) -> int:
        """In which it was admitted."""
        ...


class Returns(Protocol):
    """The page pool, as far as it tells what comes back."""

    @property
    def available(self) -> int: ...

    def returned_by(self, rooms: Sequence[Room]) -> list[int]: ...


class Victim(Protocol):
    """One who is to make room."""

    flying: bool
    chosen: bool  # runs no more


R = TypeVar("R", bound=Ranked)
V = TypeVar("V", bound=Victim)


class Marks(Generic[V]):
    """Victims that still fly: they run no more until they are back, unless they are let off by then."""

    def __init__(self) -> None:
        self._marked: list[V] = []

    def renew(self, victims: Sequence[V]) -> list[V]:
        """The choice of this step takes the place of the last one. Returns those who make room now."""
        for victim in self._marked:
            victim.chosen = False
        self._marked = [victim for victim in victims if victim.flying]
        for victim in self._marked:
            victim.chosen = True
        return [victim for victim in victims if not victim.flying]


def choose(
    blocked: Iterable[R], running: Iterable[R], giving: Sequence[Room], spared: frozenset[Slot], pool: Returns
) -> list[R]:
    """Victims so that everyone in `blocked` (oldest first) gets one page. They are later than whom they make room for.

    `running` comes latest first. Pages of `giving` are on their way back: counting them keeps one lack of pages from
    being answered twice. A slot gives one victim at a time; those of `spared` have given theirs.
    """
    chosen: list[R] = []
    rooms = list(giving)
    coming = pool.available + sum(pool.returned_by(rooms))
    candidates = iter(running)
    for needed, request in enumerate(blocked, start=1):
        while needed > coming:
            slots = {victim.slot for victim in chosen}
            victim = next((one for one in candidates if one.slot not in slots and one.slot not in spared), None)
            if victim is None or victim.order <= request.order:
                return chosen
            chosen.append(victim)
            rooms.append(victim.room)
            coming = pool.available + sum(pool.returned_by(rooms))
    return chosen
