"""The requests of a decode group, and everything that each of them holds."""

from decode.intake import Intake, State
from decode.line import Line
from tandem.core.batching import Batches
from tandem.core.budget import Budget
from tandem.core.config import Limits
from tandem.core.deadlines import Deadlines
from tandem.core.ids import Room
from tandem.core.pages import PagePool
from tandem.core.plan import Forgotten, Note
from tandem.core.quarantine import Quarantine
from tandem.core.queue import Queue


class Holdings:
    """Pages here and on the host, a place in line or in a slot, a deadline: all of it goes back when it leaves."""

    def __init__(self, limits: Limits, slots: int) -> None:
        self.requests: dict[Room, Intake] = {}
        self.pool = PagePool(limits.num_pages, limits.page_size, prefix_cache=limits.prefix_cache)
        self.host = PagePool(limits.host_pages, limits.page_size, prefix_cache=False)
        self.deadlines = Deadlines()
        self.budget = Budget()  # who is admitted: holds pages and may ask for more
        self.batches: Batches[Intake] = Batches(slots, self.pool, self.budget, limits.slot_rows)
        self.queue = Line()  # without pages yet
        self.retracted: Queue[Intake] = Queue()  # with all they have on the host
        self.quarantine = Quarantine(limits.quiesce_ms)  # whose pages prefill may still write into
        self.yielding: dict[Room, Intake] = {}  # gave up their pages, or are about to: they come before anybody new

    def news(self) -> tuple[int, ...]:
        """What may help one who was refused pages."""
        return *self.pool.news, self.budget.changes

    def most_reused(self, request: Intake) -> int:
        """Pages of the prompt that may come from the cache: one token at least is always transferred."""
        return (len(request.work.prompt) - 1) // self.pool.page_size

    def publish(self, request: Intake, tokens: int, *, leaving: bool = False) -> None:
        """Others may share what holds the first `tokens` tokens, as far as pages are full.

        Not what came back from host memory: it may be older than a flush, which the pool cannot know.
        """
        full = tokens // self.pool.page_size
        if full and not request.backups:
            content = request.first_tokens(full * self.pool.page_size)
            self.pool.publish(request.room, request.work.salt, content, request.pages[:full], leaving=leaving)

    def admit(self, request: Intake, count: int) -> None:
        """Give `count` pages more to a request that is admitted with them."""
        request.pages += self.pool.allocate(request.room, count)
        request.order = self.budget.admit(request.room, request.growth_left(self.pool.page_size))

    def withdraw(self, request: Intake) -> None:
        """A request asks for nothing more; what it holds it still holds."""
        self.deadlines.drop(request.room)
        self.budget.leave(request.room)
        self.queue.discard(request)
        self.retracted.discard(request)
        self.yielding.pop(request.room, None)

    def give_back(self, request: Intake) -> None:
        """Nobody uses the request's pages here any more."""
        self.budget.leave(request.room)
        self.pool.release(request.room)
        request.pages = ()

    def give_back_host(self, request: Intake) -> None:
        """Nobody uses its pages on the host any more."""
        self.host.release(request.room)
        request.host_pages = ()

    def leave(self, request: Intake) -> list[Note]:
        """The request is gone, and holds nothing."""
        assert request.state is State.GONE
        self.withdraw(request)
        self.batches.leave(request)
        self.quarantine.drop(request.room)
        self.give_back(request)
        self.give_back_host(request)
        del self.requests[request.room]
        return [Forgotten(request.room)]
