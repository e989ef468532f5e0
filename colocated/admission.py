"""How a queued request gets the pages of its text."""

from colocated.holdings import Holdings
from colocated.request import Input, Request
from tandem.core.ids import Room
from tandem.core.requests import pages_for


class Admission:
    """In the order of the queue. Its head waits until all its pages can be given, nobody overtakes it."""

    def __init__(self, holdings: Holdings) -> None:
        self._held = holdings
        self._refused: tuple[Room, int, int, int] | None = None  # who was refused, and what would be news to it

    def admit(self) -> None:
        """Give pages while the budget allows."""
        held = self._held
        while (request := held.queue.head) is not None and self._news(request) != self._refused:
            if not self._allocate(request):
                self._refused = self._news(request)
                break
            held.queue.discard(request)
            request.move(Input.ADMITTED)
            held.filling[request.room] = request

    def _news(self, request: Request) -> tuple[Room, int, int, int]:
        held = self._held
        return request.room, held.pool.freed_at, held.budget.changes, held.published

    def _allocate(self, request: Request) -> bool:
        """Share what is cached and add the rest, or hold nothing: a share that waits would keep pages from others.

        One token at least is left to compute, as the next one is drawn from its logits.
        """
        pool, budget, size = self._held.pool, self._held.budget, self._held.pool.page_size
        pages, left = pages_for(request.tokens, size), request.growth_left(size)
        most = (request.tokens - 1) // size
        if not budget.admits(pool.available, pages - most, left):
            return False  # whatever is cached
        hit = pool.reuse(request.room, request.work.salt, request.first_tokens(most * size), most)
        if not budget.admits(pool.available, pages - len(hit), left):
            if hit:
                pool.release(request.room)
            return False
        request.pages = hit + pool.allocate(request.room, pages - len(hit))
        request.scheduled = request.computed = len(hit) * size
        request.order = budget.admit(request.room, left)
        return True
