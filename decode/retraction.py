"""Requests that make room for older ones: their pages go to host memory and come back when there are pages again."""

from decode.holdings import Holdings
from decode.intake import RETURNING, Input, Intake, State
from tandem.core.inputs import Verdict
from tandem.core.plan import MAX_ASKS, Ask, Evicted, Note, Question, Resumed, Retracted
from tandem.core.requests import pages_for
from tandem.core.victims import Marks, choose


class Retraction:
    """Takes victims when requests are blocked, and resumes them before anybody new is admitted."""

    def __init__(self, holdings: Holdings) -> None:
        self._held = holdings
        self._marks: Marks[Intake] = Marks()

    def retract(self) -> tuple[list[Ask], list[Note]]:
        """Choose anew who makes room. Who has nothing in flight does so now; the others run no more until then."""
        asks: list[Ask] = []
        notes: list[Note] = []
        for victim in self._marks.renew(self._victims()[:MAX_ASKS]):
            if len(victim.pages) <= self._held.host.available:
                asks.append(self._take(victim))
            else:
                notes += self._evict(victim, Input.EVICTED)
        return asks, notes

    def _victims(self) -> list[Intake]:
        blocked = self._held.batches.blocked()
        if not blocked:
            return []
        requests = self._held.requests
        running = (requests[room] for room in self._held.budget.latest_first())
        giving = [request.room for request in requests.values() if request.state in RETURNING]
        spared = frozenset(request.slot for request in self._held.yielding.values() if request.state in RETURNING)
        return choose(blocked, (one for one in running if one.state is State.RUNNING), giving, spared, self._held.pool)

    def _take(self, victim: Intake) -> Ask:
        """It keeps its pages until they are copied, but runs no more."""
        victim.move(Input.CHOSEN)
        self._held.batches.leave(victim)
        self._held.budget.leave(victim.room)
        self._held.yielding[victim.room] = victim
        victim.host_pages = self._held.host.allocate(victim.room, len(victim.pages))
        self._held.host.drain_given()
        return Ask(Question.RETRACT, victim.room)

    def _evict(self, request: Intake, happened: Input) -> list[Note]:
        """Its KV is lost: the router has it computed anew."""
        request.move(happened)
        return [Evicted(request.room), *self._held.leave(request)]

    def on_retract(self, request: Intake, yes: bool) -> list[Note]:
        """A yes lets every rank copy the pages; after a no they are lost."""
        if not yes:
            return self._evict(request, Input.REFUSED)
        request.move(Input.GRANTED)
        request.backups += 1
        return [Retracted(request.room, request.pages, request.host_pages)]

    def on_backed_up(self, request: Intake, verdict: Verdict) -> list[Note]:
        """Every rank has its copy: only now others may write into the pages."""
        if verdict.nth != request.backups or request.state not in (State.BACKING_UP, State.LEAVING):
            return []
        if request.move(Input.BACKED_UP) is State.GONE:
            return self._held.leave(request)
        self._held.give_back(request)
        self._held.retracted.add(request)
        return []

    def resume(self, most: int) -> list[Ask]:
        """Give pages to those whose turn it is, the one for the next token among them; opens at most `most` votes."""
        asks: list[Ask] = []
        while len(asks) < most and (request := self._held.retracted.head) is not None:
            size = self._held.pool.page_size
            count = pages_for(request.position + 1, size)
            if not self._held.budget.admits(self._held.pool.available, count, request.growth_left(size) - count):
                break
            self._held.admit(request, count)
            self._held.retracted.discard(request)
            del self._held.yielding[request.room]
            request.move(Input.ALLOCATED)
            asks.append(Ask(Question.RESUME, request.room))
        return asks

    def on_resume(self, request: Intake, yes: bool) -> list[Note]:
        """A yes has every rank copy the pages back; after a no the copy is lost."""
        if not yes:
            return self._evict(request, Input.REFUSED)
        request.move(Input.GRANTED)
        copied = request.pages[: len(request.host_pages)]
        resumed = Resumed(request.room, request.host_pages, copied)
        self._held.give_back_host(request)
        self._held.batches.join(request)
        return [resumed]
