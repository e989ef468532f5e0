"""Decode's half of the replicated scheduler: prealloc, transfer, slots, continuous batching."""

from decode.batching import Batches
from decode.budget import Claim, can_admit
from decode.intake import OVER, Input, Intake, State
from tandem.core.config import Limits
from tandem.core.ids import Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import MAX_ASKS, Ask, Emitted, Ended, Forgotten, Granted, Note, Question, Returned, Row, ToldPeer
from tandem.core.requests import Reason, ending, pages_for, too_large
from tandem.core.slots import Flights

RETRY_MS = 50
"""Back-off after a vote that said no."""


class DecodeRole:
    """FCFS into a fixed number of slots. Pages are given only while every admitted request could still finish."""

    kinds: tuple[Kind, ...] = (Kind.TRANSFERRED, Kind.FAILED, Kind.QUIET)

    def __init__(self, limits: Limits, slots: int) -> None:
        self.pool = PagePool(limits.num_pages, limits.page_size)
        self._limits = limits
        self._requests: dict[Room, Intake] = {}
        self._queue: dict[Room, Intake] = {}  # no pages yet
        self._admitted: dict[Room, Intake] = {}  # holds pages, will grow, and will give them back: oldest first
        self._batches = Batches(slots, self.pool)
        self._submitted = 0  # counts arrivals: a refused request keeps its place in the queue
        self._now_ms = 0

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        return room in self._requests

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        """A new request queues for pages."""
        work = submit.work
        refusal = self._refusal(submit)
        if refusal is not None:
            told = [ToldPeer(work.room, work.peer, refusal)] if work.peer else []
            return [Ended(work.room, refusal), *told, Forgotten(work.room)]
        self._submitted += 1
        request = Intake(work, now_ms + submit.remaining_ms, self._submitted)
        self._requests[work.room] = self._queue[work.room] = request
        return []

    def _refusal(self, submit: Submit) -> Reason | None:
        if len(self._requests) >= self._limits.max_rooms:
            return Reason.QUEUE_FULL
        return Reason.TOO_LARGE if too_large(submit.work, self._limits, submit.work.last_position) else None

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]:
        """A yes grants the pages to the prefill group; after a no they go back and the request asks again later."""
        request = self._requests[ask.room]
        state = request.move(Input.GRANTED if yes else Input.REFUSED)
        if state is State.TRANSFERRING:
            return [Granted(request.room, ask.peer, len(request.work.prompt), request.pages)]
        if state is State.GONE:
            return [Returned(request.room), *self._leave(request)]
        self._give_back(request)
        request.pages, request.retry_ms = (), now_ms + RETRY_MS
        self._queue[request.room] = request
        self._queue = {one.room: one for one in sorted(self._queue.values(), key=lambda one: one.number)}
        return [Returned(request.room)]

    def on_verdict(self, verdict: Verdict) -> list[Note]:
        """Transferred lets a request join, failed ends it, quiet frees what a writer could still touch."""
        request = self._requests[verdict.room]
        match verdict.kind:
            case Kind.TRANSFERRED:
                request.landed = True
                return self._join(request)
            case Kind.FAILED:
                return [] if request.state in OVER else self._end(request, Reason.TRANSFER_FAILED, told_by=None)
            case _:
                request.quiet = True
                if request.state is not State.QUARANTINED:
                    return []
                request.move(Input.QUIET)
                return self._leave(request)

    def on_first_token(self, first: FirstToken) -> list[Note]:
        """Token 0 of a room, from the prefill group; a second copy says nothing new."""
        request = self._requests[first.room]
        if request.state in OVER or request.generated:
            return []
        request.generated.append(first.token)
        return self._join(request)

    def _join(self, request: Intake) -> list[Note]:
        """KV and its metadata are both needed: the later of the two lets the request run."""
        if request.state is not State.TRANSFERRING or not (request.landed and request.generated):
            return []
        request.move(Input.JOINED)
        self._batches.join(request)
        return [Emitted(request.room, 0, request.generated[0])]

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room in any state; one that is not here yet will be ignored when it comes."""
        request = self._requests.get(abort.room)
        if request is None:
            return [Forgotten(abort.room)]
        if request.state in OVER:
            return []
        return self._end(request, Reason.PEER_ENDED if abort.peer else abort.reason, told_by=abort.peer)

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed."""
        late = [request for request in self._live() if now_ms >= request.deadline_ms]
        return [note for request in late for note in self._end(request, Reason.DEADLINE, told_by=None)]

    def _end(self, request: Intake, reason: Reason, told_by: str | None) -> list[Note]:
        """End a request. The client hears at once; pages stay for whoever may still use them."""
        notes: list[Note] = [Ended(request.room, reason)]
        arriving = request.state in (State.QUEUED, State.ASKING, State.TRANSFERRING)
        # Who told us is told back if it could still write: its quiet may have come before this room was here.
        unsettled = request.state is State.TRANSFERRING and not request.quiet
        if arriving and request.work.peer and (unsettled or not told_by):
            notes.append(ToldPeer(request.room, request.work.peer, reason))
        state = request.move(Input.ENDED_IN_FLIGHT if request.flying else Input.ENDED)
        if state is State.QUARANTINED and request.quiet:
            state = request.move(Input.QUIET)
        if state is State.QUARANTINED:
            self._admitted.pop(request.room)
            self.pool.quarantine(request.room)
        return notes + self._leave(request) if state is State.GONE else notes

    def _leave(self, request: Intake) -> list[Note]:
        """Nobody uses the request's pages any more."""
        del self._requests[request.room]
        self._queue.pop(request.room, None)
        self._batches.leave(request)
        self._give_back(request)
        return [Forgotten(request.room)]

    def _give_back(self, request: Intake) -> None:
        self._admitted.pop(request.room, None)
        self.pool.release(request.room)

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """A running request's next token; one that ended meanwhile only gives its pages back."""
        request = self._requests[row.room]
        request.flying = False
        if request.state is State.FINISHING:
            request.move(Input.HARVESTED)
            return self._leave(request)
        notes: list[Note] = []
        for token in tokens:
            request.generated.append(token)
            notes.append(Emitted(row.room, len(request.generated) - 1, token))
            reason = ending(request.work, len(request.generated), token)
            if reason is not None:
                return notes + self._end(request, reason, told_by=None)
        return notes

    def admit(self, now_ms: int) -> list[Ask]:
        """Give the prompt's pages in order of arrival, while every admitted request could still finish, and ask."""
        self._now_ms = now_ms
        asks: list[Ask] = []
        for request in list(self._queue.values()):
            if request.retry_ms > now_ms:
                continue  # its prefill group is not ready: others need not wait for it
            if len(asks) == MAX_ASKS or not self._allocate(request):
                break
            assert request.work.peer is not None
            asks.append(Ask(Question.PREALLOC, request.room, request.work.peer))
        return asks

    def _allocate(self, request: Intake) -> bool:
        size = self.pool.page_size
        held = pages_for(len(request.work.prompt), size)
        claim = Claim(held, pages_for(request.work.last_position, size) - held)
        if not can_admit(self.pool.free, self._claims(), claim):
            return False
        del self._queue[request.room]
        request.pages = self.pool.allocate(request.room, held)
        request.move(Input.ALLOCATED)
        self._admitted[request.room] = request
        return True

    def _claims(self) -> list[Claim]:
        size = self.pool.page_size
        return [Claim(len(request.pages), request.growth_left(size)) for request in self._admitted.values()]

    def plan(self, slot: Slot) -> list[Row]:
        """One token for every request of the slot that may take the page it needs."""
        return self._batches.plan(slot, list(self._admitted.values()), self._claims())

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """Round robin over the slots that can run something now, else an idle one for newcomers to join."""
        return self._batches.next_slot(after, flights.busy(returned))

    def wake_ms(self) -> int | None:
        """The next deadline, or the end of a back-off."""
        times = [request.deadline_ms for request in self._live()]
        times += [request.retry_ms for request in self._queue.values() if request.retry_ms > self._now_ms]
        return min(times, default=None)

    def _live(self) -> list[Intake]:
        return [request for request in self._requests.values() if request.state not in OVER]

    def lengths(self) -> tuple[int, ...]:
        """Requests in all states, those without pages, those that run."""
        return len(self._requests), len(self._queue), len(self._batches)
