"""The replicated half of a colocated group: plain pipeline parallelism, prompts and answers in the same ticks."""

from colocated.admission import Admission
from colocated.holdings import Holdings
from colocated.request import FINISHING, RUNNING, Input, Request, State
from tandem.core.config import Limits
from tandem.core.controls import Controls
from tandem.core.errors import IllegalTransition
from tandem.core.ids import NO_SLOT, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.plan import Ask, Emitted, Ended, Forgotten, Note, Question, Row, Uncompiled
from tandem.core.quarantine import Held
from tandem.core.queue import Place
from tandem.core.requests import Reason, Work, ending, too_large
from tandem.core.role import Decision
from tandem.core.slots import Flights
from tandem.core.victims import Marks, choose


class ColocatedRole:
    """FCFS, with priority that ages. A tick has the next tokens of its slot, and chunks of the texts being filled.

    When pages run out, the latest make room: they are computed anew later, prompt and answer so far.
    """

    kinds: tuple[Kind, ...] = (Kind.COMPILED, Kind.BAD_GRAMMAR)

    def __init__(self, limits: Limits, controls: Controls, slots: int) -> None:
        self._limits = limits
        self._controls = controls
        self._held = Holdings(limits, slots)
        self.pool = self._held.pool
        self._requests = self._held.requests
        self._admission = Admission(self._held)
        self._marks: Marks[Request] = Marks()
        self._submitted = 0  # counts arrivals

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        return room in self._requests

    # what comes in

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        """A new request queues for pages, or waits for its grammar before."""
        work = submit.work
        if too_large(work, self._limits, work.last_position):
            return self.refuse(work, Reason.TOO_LARGE)
        self._submitted += 1
        request = self._requests[work.room] = Request(work, Place(work.due_ms(now_ms), self._submitted))
        self._held.deadlines.add(work.room, now_ms + submit.remaining_ms)
        if work.grammar:
            request.state = State.COMPILING
            return [Uncompiled(work.room, work.grammar)]
        self._held.queue.add(request)
        return []

    def refuse(self, work: Work, reason: Reason) -> list[Note]:
        """There is nobody else to be told."""
        return [Ended(work.room, reason), Forgotten(work.room)]

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """A chunk or a next token came back; a request that ended meanwhile only waits for the last of them."""
        request = self._requests[row.room]
        self._held.land(request, row)
        if request.state is not FINISHING:
            failed = row.samples and not tokens
            return self._end(request, Reason.NOT_A_NUMBER) if failed else self._go_on(request, tokens)
        if request.in_flight:
            return []
        request.move(Input.HARVESTED)
        return self._held.leave(request)

    def _go_on(self, request: Request, tokens: tuple[int, ...]) -> list[Note]:
        """Tell the new tokens. The first one after a text has been filled lets the request join a slot."""
        notes: list[Note] = []
        for token in tokens:
            index = len(request.generated)
            request.add(token)
            notes.append(Emitted(request.room, index, token, 0 if index else request.cached))
            reason = ending(request.work, index + 1, token)
            if reason is not None:
                return notes + self._end(request, reason)
        if tokens and request.state is not RUNNING:
            request.move(Input.FILLED)
            self._held.batches.join(request)
        return notes

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room in any state; one that is not here yet will be ignored when it comes."""
        request = self._requests.get(abort.room)
        if request is None:
            return [Forgotten(abort.room)]
        return [] if request.state is State.FINISHING else self._end(request, abort.reason)

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed."""
        late = self._held.deadlines.late(now_ms)
        return [note for room in late for note in self._end(self._requests[room], Reason.DEADLINE)]

    def _end(self, request: Request, reason: Reason) -> list[Note]:
        """End a request. The client hears at once; pages stay while a forward uses them."""
        ended = Ended(request.room, reason)
        state = request.move(Input.ENDED_IN_FLIGHT if request.in_flight else Input.ENDED)
        if state is State.GONE:
            return [ended, *self._held.leave(request)]
        self._held.withdraw(request)
        return [ended]

    def on_first_token(self, first: FirstToken) -> list[Note]:
        """Only decode groups are sent first tokens."""
        del first
        return []

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]:
        """A colocated group asks for no vote."""
        raise IllegalTransition(f"{ask} came back with {yes} at {now_ms}")

    def on_verdict(self, verdict: Verdict) -> list[Note]:
        """Only about grammars: nothing moves between ranks."""
        request = self._requests[verdict.room]
        match verdict.kind:
            case Kind.COMPILED:
                request.move(Input.COMPILED)
                self._held.queue.add(request)
                return []
            case Kind.BAD_GRAMMAR:
                return self._end(request, Reason.BAD_GRAMMAR)
            case _:
                raise IllegalTransition(f"{verdict} is about a transfer, and there is none")

    def polls(self) -> dict[Room, list[Question]]:
        """Nothing has to be asked, for the same reason."""
        return {}

    # what is decided

    def decide(self, slot: Slot, now_ms: int) -> Decision:
        """Who runs may grow, before others get pages; what is admitted now may be computed now."""
        del now_ms
        rows = self._held.batches.plan(slot)
        self._make_room()
        self._admission.admit()
        if slot != NO_SLOT:
            rows += self._chunks()
        return Decision(rows)

    def _make_room(self) -> None:
        """Choose anew whose pages go to those that cannot grow. One in flight runs no more until it is back."""
        for victim in self._marks.renew(self._victims()):
            self._held.make_room(victim)

    def _victims(self) -> list[Request]:
        blocked = self._held.batches.blocked()
        if not blocked:
            return []
        latest = (self._requests[room] for room in self._held.budget.latest_first())
        running = [request for request in latest if request.state is State.RUNNING]
        giving = [request.room for request in self._requests.values() if request.state is State.FINISHING]
        return choose(blocked, running, giving, frozenset(), self.pool)

    def _chunks(self) -> list[Row]:
        """Within the tick's budget, in the order of admission; one text gets at most one chunk."""
        budget = self._controls.max_prefill_tokens
        rows: list[Row] = []
        for request in list(self._held.filling.values()):
            if not budget:
                break
            row = request.chunk(min(budget, self._controls.chunk_tokens(request.scheduled)), self.pool.page_size)
            if row.samples:
                del self._held.filling[request.room]
            budget -= len(row.tokens)
            rows.append(row)
        return rows

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """Round robin over the slots that can run something now; chunks go with any slot."""
        slot, can_run = self._held.batches.next_slot(after, flights.busy(returned))
        return slot, can_run or (slot != NO_SLOT and bool(self._held.filling))

    def wake_ms(self) -> int | None:
        """The next deadline."""
        return self._held.deadlines.next_ms

    def held(self) -> list[tuple[Held, int]]:
        """Nobody else touches its pages."""
        return []

    def states(self) -> list[str]:
        """The state of each request, by name."""
        return [request.state.value for request in self._requests.values()]

    def lengths(self) -> tuple[int, ...]:
        """Requests in all states, those that wait for pages, those that have them."""
        return len(self._requests), len(self._held.queue), len(self._held.budget)
