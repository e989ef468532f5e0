"""The requests of a colocated group, and everything that each of them holds."""

from colocated.request import Input, Request, State
from tandem.core.batching import Batches
from tandem.core.budget import Budget
from tandem.core.config import Limits
from tandem.core.deadlines import Deadlines
from tandem.core.ids import Room
from tandem.core.pages import PagePool
from tandem.core.plan import Forgotten, Note, Row
from tandem.core.queue import Queue


class Holdings:
    """Pages, a place in the queue or in a slot, a deadline: all of it goes back when it leaves."""

    def __init__(self, limits: Limits, slots: int) -> None:
        self.requests: dict[Room, Request] = {}
        self.pool = PagePool(limits.num_pages, limits.page_size, prefix_cache=limits.prefix_cache)
        self.deadlines = Deadlines()
        self.budget = Budget()  # who is admitted: holds pages and may ask for more
        self.queue: Queue[Request] = Queue()
        self.filling: dict[Room, Request] = {}  # chunks left to schedule, in the order of admission
        self.batches: Batches[Request] = Batches(slots, self.pool, self.budget, limits.slot_rows)

    def news(self) -> tuple[int, ...]:
        """What may help one who was refused pages."""
        return *self.pool.news, self.budget.changes

    def land(self, request: Request, row: Row) -> None:
        """A row came back: others may share the pages that it has filled, and those before them."""
        request.land(row)
        size = self.pool.page_size
        if request.computed // size > row.start // size:
            self._publish(request)

    def _publish(self, request: Request, *, leaving: bool = False) -> None:
        full = request.computed // self.pool.page_size
        if full:
            tokens = request.first_tokens(full * self.pool.page_size)
            self.pool.publish(request.room, request.work.salt, tokens, request.pages[:full], leaving=leaving)

    def make_room(self, request: Request) -> None:
        """It gives its pages up and keeps its tokens: it waits in its place until they can be computed anew.

        What is still cached by then need not be.
        """
        request.move(Input.MADE_ROOM)
        self._give_back(request)
        self.queue.add(request)

    def withdraw(self, request: Request) -> None:
        """A request asks for nothing more; what it holds it still holds."""
        self.deadlines.drop(request.room)
        self.budget.leave(request.room)
        self.queue.discard(request)
        self.filling.pop(request.room, None)
        self.batches.leave(request)

    def leave(self, request: Request) -> list[Note]:
        """The request is gone, and holds nothing."""
        assert request.state is State.GONE
        self.withdraw(request)
        self._give_back(request)
        del self.requests[request.room]
        return [Forgotten(request.room)]

    def _give_back(self, request: Request) -> None:
        self._publish(request, leaving=True)
        self.budget.leave(request.room)
        self.batches.leave(request)
        self.pool.release(request.room)
        request.pages, request.scheduled, request.computed = (), 0, 0
