"""Continuous batching: which running requests share a slot, and which of them go into the next tick."""

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from tandem.core.budget import Budget
from tandem.core.ids import NO_SLOT, PageId, Room, Slot
from tandem.core.plan import Row


class Runner(Protocol):
    """What a slot needs to know of a request, and what it notes on it."""

    pages: tuple[PageId, ...]
    slot: Slot
    flying: bool
    blocked_at: int  # the pool's `freed_at` when it was refused a page

    @property
    def room(self) -> Room: ...

    @property
    def order(self) -> int:
        """In which it was admitted."""
        ...

    @property
    def position(self) -> int:
        """Where its next token goes."""
        ...

    @property
    def runs(self) -> bool:
        """Whether it computes when its slot does."""
        ...

    def row(self) -> Row:
        """What it computes."""
        ...


class Pages(Protocol):
    """The page pool, as far as growth needs it."""

    @property
    def page_size(self) -> int: ...

    @property
    def available(self) -> int: ...

    @property
    def freed_at(self) -> int: ...

    def allocate(self, room: Room, count: int) -> tuple[PageId, ...]: ...


R = TypeVar("R", bound=Runner)


class Batches(Generic[R]):
    """The slots of a group. A request stays in its slot: its next token needs its last one.

    A slot of up to `slot_rows` requests takes as long as one with a single request, since a stage reads all its
    weights for it: so few are not spread over slots, and slots that fit into one are joined.
    """

    def __init__(self, slots: int, pool: Pages, budget: Budget, slot_rows: int) -> None:
        self._slots: list[dict[Room, R]] = [{} for _ in range(slots)]  # each in the order of admission
        self._newcomers: dict[Room, R] = {}  # joined in this step
        self._blocked: dict[Room, R] = {}
        self._pool = pool
        self._budget = budget
        self._slot_rows = slot_rows

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots)

    def join(self, request: R) -> None:
        """A request is ready to run; the plan of this step chooses its slot."""
        self._newcomers[request.room] = request

    def leave(self, request: R) -> None:
        """A request runs no more, wherever it was."""
        self._newcomers.pop(request.room, None)
        self._blocked.pop(request.room, None)
        if request.slot != NO_SLOT:
            self._slots[request.slot].pop(request.room, None)

    def _bind(self, named: Slot) -> None:
        """Newcomers fill the slot that is nearest to its `slot_rows`; where all have them, they go where the fewest
        run: full stages overlap best. Among equals, the slot that runs now.
        """
        for request in self._newcomers.values():
            places = [(*self._rank(len(slot)), index != named, index) for index, slot in enumerate(self._slots)]
            self._put([request], Slot(min(places)[-1]))
        self._newcomers.clear()

    def _rank(self, load: int) -> tuple[bool, int]:
        """How good it is to join a slot with so many requests: the less, the better."""
        full = load >= self._slot_rows
        return full, load if full else -load

    def _put(self, requests: Iterable[R], slot: Slot) -> None:
        """They run in this slot from now on."""
        members = [*self._slots[slot].values(), *requests]
        for request in members:
            request.slot = slot
        self._slots[slot] = {one.room: one for one in sorted(members, key=lambda member: member.order)}

    def _merge(self, slot: Slot) -> None:
        """All of a slot go over to the fullest one that has room for them, and run when that one does."""
        mine = len(self._slots[slot])
        loads = [(len(other), -index) for index, other in enumerate(self._slots) if index != slot and other]
        fitting = [load for load in loads if load[0] + mine <= self._slot_rows]
        if mine and fitting:
            leaving, self._slots[slot] = self._slots[slot], {}
            self._put(leaving.values(), Slot(-max(fitting)[1]))

    def plan(self, slot: Slot) -> list[Row]:
        """Rows of the named slot in order of admission. A request that cannot grow now skips the tick."""
        if self._newcomers:
            self._bind(slot)
        rows: list[Row] = []
        if slot == NO_SLOT:
            return rows
        self._merge(slot)
        size = self._pool.page_size
        for request in self._slots[slot].values():
            if self._runnable(request) and (request.position < len(request.pages) * size or self._grow(request)):
                request.flying = True
                rows.append(request.row())
        return rows

    def _grow(self, request: R) -> bool:
        """Whether there is a page for its next token; it takes it."""
        pool = self._pool
        if not pool.available:
            request.blocked_at = pool.freed_at
            self._blocked[request.room] = request
            return False
        request.pages += pool.allocate(request.room, 1)
        self._budget.grew(request.room)
        self._blocked.pop(request.room, None)
        return True

    def blocked(self) -> list[R]:
        """Those that could not grow when they were last to run, oldest first."""
        return sorted(self._blocked.values(), key=lambda request: request.order) if self._blocked else []

    def next_slot(self, after: Slot, busy: set[Slot]) -> tuple[Slot, bool]:
        """The next slot after `after` that can run something, else the next idle one, else NO_SLOT."""
        count, idle = len(self._slots), NO_SLOT
        for step in range(1, count + 1):
            slot = Slot((after + step) % count)
            if slot in busy:
                continue
            if any(self._runnable(request) for request in self._slots[slot].values()):
                return slot, True
            idle = slot if idle == NO_SLOT else idle
        return idle, False

    def _runnable(self, request: R) -> bool:
        """Not ended, and not waiting for pages that nobody has freed since it last asked."""
        return request.runs and request.blocked_at != self._pool.freed_at
