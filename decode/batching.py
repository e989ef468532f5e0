"""Continuous batching: which running requests share a slot, and which of them go into the next tick."""

from collections.abc import Sequence

from decode.budget import Claim, margins, tightest_before
from decode.intake import Intake, State
from tandem.core.ids import NO_SLOT, Room, Slot
from tandem.core.pages import PagePool
from tandem.core.plan import Row
from tandem.core.requests import pages_for


class Batches:
    """The slots of a decode group. A request stays in its slot: its next token needs its last one."""

    def __init__(self, slots: int, pool: PagePool) -> None:
        self._slots: list[dict[Room, Intake]] = [{} for _ in range(slots)]
        self._newcomers: dict[Room, Intake] = {}  # joined in this step
        self._pool = pool

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots)

    def join(self, request: Intake) -> None:
        """A request is ready to run; the plan of this step chooses its slot."""
        self._newcomers[request.room] = request

    def leave(self, request: Intake) -> None:
        """A request has gone, wherever it was."""
        self._newcomers.pop(request.room, None)
        if request.slot != NO_SLOT:
            del self._slots[request.slot][request.room]

    def _bind(self, named: Slot) -> None:
        """Newcomers go where the fewest run: full stages overlap best. Among equals, the slot that runs now."""
        for room, request in self._newcomers.items():
            loads = [(len(slot), index != named, index) for index, slot in enumerate(self._slots)]
            request.slot = Slot(min(loads)[2])
            self._slots[request.slot][room] = request
        self._newcomers.clear()

    def plan(self, slot: Slot, admitted: Sequence[Intake], claims: Sequence[Claim]) -> list[Row]:
        """Rows of the named slot in order of admission. A request that may not grow now skips the tick."""
        self._bind(slot)
        if slot == NO_SLOT:
            return []
        rows = []
        given = 0
        tightest = tightest_before(margins(self._pool.free, claims))
        for request, spare in zip(admitted, tightest, strict=True):
            if request.slot != slot or request.state is not State.RUNNING:
                continue
            if self._needs_page(request):
                if not self._pool.free or (spare is not None and spare - given < 1):
                    request.blocked_at = self._pool.freed_at
                    continue
                request.pages += self._pool.allocate(request.room, 1)
                given += 1
            rows.append(self._row(request))
        return rows

    def _needs_page(self, request: Intake) -> bool:
        return pages_for(request.position + 1, self._pool.page_size) > len(request.pages)

    def _row(self, request: Intake) -> Row:
        request.flying = True
        token = request.generated[-1]
        return Row(request.room, (token,), request.position, request.pages, True, request.work.sampling)

    def next_slot(self, after: Slot, busy: set[Slot]) -> tuple[Slot, bool]:
        """The next slot after `after` that can run something, else the next idle one, else NO_SLOT."""
        count = len(self._slots)
        order = [Slot((after + step) % count) for step in range(1, count + 1)]
        idle = [slot for slot in order if slot not in busy]
        for slot in idle:
            if any(self._runnable(request) for request in self._slots[slot].values()):
                return slot, True
        return (idle[0] if idle else NO_SLOT), False

    def _runnable(self, request: Intake) -> bool:
        """Not ended, and not waiting for pages that nobody has freed since it last asked."""
        return request.state is State.RUNNING and request.blocked_at != self._pool.freed_at
