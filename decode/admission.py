"""How a queued request gets its first pages: what is cached, the rest of its prompt, and a vote of all ranks."""

from itertools import islice

from decode.holdings import Holdings
from decode.intake import Input, Intake
from tandem.core.plan import Ask, Granted, Note, Question, Returned
from tandem.core.requests import pages_for
from tandem.core.turns import Turns

RETRY_MS = 50
"""Back-off after a vote that said no."""


class Admission:
    """In the order of the queue. Its head waits until its pages can be given, nobody overtakes it."""

    def __init__(self, holdings: Holdings) -> None:
        self._held = holdings
        self._turns = Turns()

    def ask(self, most: int) -> list[Ask]:
        """Give pages while the budget allows, and open at most `most` votes."""
        asks: list[Ask] = []
        served = self._turns.served(self._held.queue, self._allocate, self._held.news)
        for request in islice(served, most):
            request.move(Input.ALLOCATED)
            assert request.work.peer is not None
            asks.append(Ask(Question.PREALLOC, request.room, request.work.peer))
        return asks

    def _allocate(self, request: Intake) -> bool:
        """Share what is cached and add the rest."""
        pool, budget, size = self._held.pool, self._held.budget, self._held.pool.page_size
        prompt = pages_for(len(request.work.prompt), size)
        left = request.growth_left(size) - prompt
        most = self._held.most_reused(request)

        def fits(hit: int) -> bool:
            return budget.admits(pool.available, prompt - hit, left)

        if not fits(most):
            return False  # whatever is cached
        hit = pool.share(request.room, request.work.salt, request.prompt, most, fits)
        if hit is None:
            return False
        request.pages, request.hit = hit, len(hit)
        self._held.admit(request, prompt - len(hit))
        return True

    def on_outcome(self, request: Intake, yes: bool, now_ms: int) -> list[Note]:
        """A yes grants the pages to the prefill group; after a no they go back and the request asks again later."""
        room, work = request.room, request.work
        request.move(Input.GRANTED if yes else Input.REFUSED)
        if yes:
            assert work.peer is not None
            return [Granted(room, work.peer, len(work.prompt), request.hit, request.pages[request.hit :])]
        self._held.give_back(request)
        self._held.queue.pause(request, now_ms + RETRY_MS)
        return [Returned(room)]
