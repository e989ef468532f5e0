"""Prefill's half of the replicated scheduler: bootstrap, admission, chunks, hand-off."""

from prefill.handoff import Handoff, Input, State
from tandem.core.config import Limits
from tandem.core.errors import IllegalTransition
from tandem.core.ids import NO_SLOT, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import Ask, Emitted, Ended, Forgotten, HandedOff, Note, Opened, Row, Settled, Stopped, ToldPeer
from tandem.core.requests import Reason, ending, pages_for, too_large
from tandem.core.slots import Flights

WINDOW = Slot(0)
"""Prefill has one slot: chunks of one prompt flow through consecutive ticks."""


class PrefillRole:
    """FCFS. A whole prompt's pages are reserved at admission: holding a part while waiting for the rest deadlocks."""

    kinds: tuple[Kind, ...] = (Kind.BOOTSTRAPPED, Kind.FAILED, Kind.QUIET)

    def __init__(self, limits: Limits, window: int) -> None:
        self.pool = PagePool(limits.num_pages, limits.page_size)
        self._limits = limits
        self._window = window  # ticks in flight
        self._requests: dict[Room, Handoff] = {}
        self._waiting: dict[Room, Handoff] = {}  # bootstrapped, in the order of their verdicts
        self._running: dict[Room, Handoff] = {}  # chunks left to schedule, in the order of admission

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        return room in self._requests

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        """A new request waits for its grants; one that nobody will take over waits for pages at once."""
        work = submit.work
        refusal = self._refusal(submit)
        if refusal is not None:
            return [Ended(work.room, refusal), *self._farewell(work.room, work.peer, refusal), Forgotten(work.room)]
        state = State.BOOTSTRAPPING if work.peer else State.WAITING
        request = Handoff(work, now_ms + submit.remaining_ms, state)
        self._requests[work.room] = request
        if not work.peer:
            self._waiting[work.room] = request
        return [Opened(work.room, work.peer)]

    def _refusal(self, submit: Submit) -> Reason | None:
        if len(self._requests) >= self._limits.max_rooms:
            return Reason.QUEUE_FULL
        return Reason.TOO_LARGE if too_large(submit.work, self._limits, len(submit.work.prompt)) else None

    def on_first_token(self, first: FirstToken) -> list[Note]:
        """Only decode groups are sent first tokens."""
        del first
        return []

    def on_verdict(self, verdict: Verdict) -> list[Note]:
        """Bootstrapped moves a request on, failed ends it, quiet frees its pages."""
        request = self._requests[verdict.room]
        match verdict.kind:
            case Kind.BOOTSTRAPPED:
                if request.state is State.BOOTSTRAPPING:
                    request.move(Input.BOOTSTRAPPED)
                    self._waiting[request.room] = request
                return []
            case Kind.FAILED:
                return [] if request.state is State.DRAINING else self._end(request, Reason.TRANSFER_FAILED, None)
            case _:
                request.quiet = True
                return self._settle(request)

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room in any state. The peer group is answered even about a room that was never here."""
        request = self._requests.get(abort.room)
        if request is None:
            answer: list[Note] = [Settled(abort.room, abort.peer)] if abort.peer else []
            return [*answer, Forgotten(abort.room)]
        if request.state is State.DRAINING:
            return []
        reason = Reason.PEER_ENDED if abort.peer else abort.reason
        return self._end(request, reason, abort.peer)

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed."""
        late = [request for request in self._live() if now_ms >= request.deadline_ms]
        return [note for request in late for note in self._end(request, Reason.DEADLINE, None)]

    def _end(self, request: Handoff, reason: Reason, told_by: str | None) -> list[Note]:
        """End a request early: tell the router and the peer, then stop what is under way."""
        self._waiting.pop(request.room, None)
        self._running.pop(request.room, None)
        peer = None if told_by else request.work.peer
        notes: list[Note] = [Ended(request.room, reason)]
        if peer:
            notes.append(ToldPeer(request.room, peer, reason))
        if request.move(Input.ENDED) is State.GONE:
            return notes + self._leave(request)
        return [*notes, Stopped(request.room), *self._settle(request)]

    def _farewell(self, room: Room, peer: str | None, reason: Reason) -> list[Note]:
        return [ToldPeer(room, peer, reason), Settled(room, peer)] if peer else []

    def _settle(self, request: Handoff) -> list[Note]:
        """Quiet, and nothing left to come: the room can go. While token 0 is on its way it cannot."""
        if not request.quiet or request.state is State.RUNNING:
            return []
        request.move(Input.QUIET)
        return self._leave(request)

    def _leave(self, request: Handoff) -> list[Note]:
        """Nobody can touch the request's pages any more, here or at its peer."""
        del self._requests[request.room]
        self.pool.release(request.room)
        settled: list[Note] = [Settled(request.room, request.work.peer)] if request.work.peer else []
        return [*settled, Forgotten(request.room)]

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """The last chunk brings token 0: hand the request off, unless that token was all it wanted."""
        request = self._requests.get(row.room)
        if request is None or request.state is not State.RUNNING or not tokens:
            return []
        (token,) = tokens
        emitted = Emitted(row.room, 0, token)
        reason = ending(request.work, 1, token)
        if request.work.peer is None:
            request.move(Input.FINISHED)
            request.move(Input.QUIET)  # a sampled row has passed every rank, and nothing was posted
            return [emitted, Ended(row.room, reason or Reason.LENGTH), *self._leave(request)]
        if reason is None:
            request.move(Input.SAMPLED)
            return [emitted, HandedOff(row.room, request.work.peer, token), *self._settle(request)]
        request.move(Input.FINISHED)
        told = ToldPeer(row.room, request.work.peer, Reason.PEER_ENDED)
        return [emitted, Ended(row.room, reason), told, Stopped(row.room), *self._settle(request)]

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]:
        """Prefill asks for no vote."""
        raise IllegalTransition(f"{ask} came back with {yes} at {now_ms}")

    def admit(self, now_ms: int) -> list[Ask]:
        """First come, first served: the head waits until all its pages are free, nobody overtakes it."""
        del now_ms
        while self._waiting:
            request = next(iter(self._waiting.values()))
            needed = pages_for(len(request.work.prompt), self.pool.page_size)
            if needed > self.pool.free:
                break
            del self._waiting[request.room]
            request.pages = self.pool.allocate(request.room, needed)
            request.move(Input.ADMITTED)
            self._running[request.room] = request
        return []

    def plan(self, slot: Slot) -> list[Row]:
        """Chunks in the order of admission, within the tick's budget; one prompt gets at most one chunk."""
        budget = self._limits.max_prefill_tokens if slot != NO_SLOT else 0
        rows = []
        for request in list(self._running.values()):
            if not budget:
                break
            row = self._chunk(request, min(budget, self._limits.chunked_prefill_size))
            budget -= len(row.tokens)
            rows.append(row)
        return rows

    def _chunk(self, request: Handoff, most: int) -> Row:
        start, count = request.scheduled, min(most, request.remaining)
        request.scheduled += count
        last = not request.remaining
        if last:
            del self._running[request.room]
        tokens = request.work.prompt[start : request.scheduled]
        table = request.pages[: pages_for(request.scheduled, self.pool.page_size)]
        return Row(request.room, tokens, start, table, last, request.work.sampling)

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """The window, if it has room for another tick."""
        del after
        full = len(flights) - len(returned) >= self._window
        return (NO_SLOT, False) if full else (WINDOW, bool(self._running))

    def wake_ms(self) -> int | None:
        """The next deadline."""
        return min((request.deadline_ms for request in self._live()), default=None)

    def _live(self) -> list[Handoff]:
        return [request for request in self._requests.values() if request.state is not State.DRAINING]

    def lengths(self) -> tuple[int, ...]:
        """Requests in all states, those that wait for pages, those with chunks to schedule."""
        return len(self._requests), len(self._waiting), len(self._running)
