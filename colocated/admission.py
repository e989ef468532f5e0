"""How a queued request gets the pages of its text."""

from colocated.holdings import Holdings
from colocated.request import Input, Request
from tandem.core.requests import pages_for
from tandem.core.turns import Turns


class Admission:
    """In the order of the queue. Its head waits until all its pages can be given, nobody overtakes it."""

    def __init__(self, holdings: Holdings) -> None:
        self._held = holdings
        self._turns = Turns()

    def admit(self) -> None:
        """Give pages while the budget allows."""
        for request in self._turns.served(self._held.queue, self._allocate, self._held.news):
            request.move(Input.ADMITTED)
            self._held.filling[request.room] = request

    def _allocate(self, request: Request) -> bool:
        """Share what is cached and add the rest. One token at least is computed: the next is drawn from its logits."""
        pool, budget, size = self._held.pool, self._held.budget, self._held.pool.page_size
        pages, left = pages_for(request.tokens, size), request.growth_left(size)
        most = (request.tokens - 1) // size

        def fits(hit: int) -> bool:
            return budget.admits(pool.available, pages - hit, left)

        if not fits(most):
            return False  # whatever is cached
        hit = pool.share(request.room, request.work.salt, request.first_tokens(most * size), most, fits)
        if hit is None:
            return False
        request.pages = hit + pool.allocate(request.room, pages - len(hit))
        request.scheduled = request.computed = request.cached = len(hit) * size
        request.order = budget.admit(request.room, left)
        return True
