"""Decode's half of the replicated scheduler: prealloc, transfer, continuous batching, making room."""

from decode.admission import Admission
from decode.holdings import Holdings
from decode.intake import OVER, RUNNING, Input, Intake, State
from decode.retraction import Retraction
from tandem.core.config import Limits
from tandem.core.errors import IllegalTransition
from tandem.core.ids import Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.plan import MAX_ASKS, Ask, CutOff, Emitted, Ended, Forgotten, Note, Question, Row, ToldPeer, Uncompiled
from tandem.core.quarantine import Held
from tandem.core.queue import Place
from tandem.core.requests import Reason, Work, ending, too_large
from tandem.core.role import Decision
from tandem.core.slots import Flights

ARRIVING = (State.COMPILING, State.QUEUED, State.ASKING, State.TRANSFERRING)
"""States of a request whose prefill group still has work to do for it."""


class DecodeRole:
    """FCFS, with priority that ages, into a fixed number of slots. When pages run out, the latest make room."""

    kinds: tuple[Kind, ...] = (
        Kind.COMPILED,
        Kind.BAD_GRAMMAR,
        Kind.TRANSFERRED,
        Kind.FAILED,
        Kind.CORRUPTED,
        Kind.QUIET,
        Kind.FENCED,
        Kind.BACKED_UP,
    )

    def __init__(self, limits: Limits, slots: int) -> None:
        self._limits = limits
        self._held = Holdings(limits, slots)
        self.pool = self._held.pool
        self._requests = self._held.requests
        self._admission = Admission(self._held)
        self._retraction = Retraction(self._held)
        self._submitted = 0  # counts arrivals

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        return room in self._requests

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        """A new request queues for pages, or waits for its grammar before."""
        work = submit.work
        if too_large(work, self._limits, work.last_position):
            return self.refuse(work, Reason.TOO_LARGE)
        self._submitted += 1
        request = Intake(work, Place(work.due_ms(now_ms), self._submitted))
        self._requests[work.room] = request
        self._held.deadlines.add(work.room, now_ms + submit.remaining_ms)
        if work.grammar:
            request.state = State.COMPILING
            return [Uncompiled(work.room, work.grammar)]
        self._held.queue.add(request)
        return []

    def refuse(self, work: Work, reason: Reason) -> list[Note]:
        """Prefill is told, as it would wait for our grants."""
        told = [ToldPeer(work.room, work.peer, reason)] if work.peer else []
        return [Ended(work.room, reason), *told, Forgotten(work.room)]

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]:
        """What was allocated for a vote is used or goes back. One that ended meanwhile gives all back either way."""
        request = self._requests[ask.room]
        if request.state is State.DOOMED:
            request.move(Input.GRANTED if yes else Input.REFUSED)
            return self._held.leave(request)
        match ask.question:
            case Question.PREALLOC:
                return self._admission.on_outcome(request, yes, now_ms)
            case Question.RETRACT:
                return self._retraction.on_retract(request, yes)
            case Question.RESUME:
                return self._retraction.on_resume(request, yes)
            case _:
                raise IllegalTransition(f"{ask} came back with {yes}: decode asks no such question")

    def on_verdict(self, verdict: Verdict) -> list[Note]:
        """Compiled and transferred move a request on, the bad ones end it, the others free what could be touched."""
        request = self._requests[verdict.room]
        match verdict.kind:
            case Kind.COMPILED:
                request.move(Input.COMPILED)
                self._held.queue.add(request)
                return []
            case Kind.BAD_GRAMMAR:
                return self._end(request, Reason.BAD_GRAMMAR, told_by=None)
            case Kind.TRANSFERRED:
                return self._land(request)
            case Kind.FAILED:
                return self._fail(request, Reason.TRANSFER_FAILED)
            case Kind.CORRUPTED:
                return self._fail(request, Reason.KV_CHECKSUM)
            case Kind.BACKED_UP:
                return self._retraction.on_backed_up(request, verdict)
            case _:
                request.quiet = True
                if request.state is not State.QUARANTINED:
                    return []
                request.move(Input.QUIET)
                return self._held.leave(request)

    def _fail(self, request: Intake, reason: Reason) -> list[Note]:
        return [] if request.state in OVER else self._end(request, reason, told_by=None)

    def _land(self, request: Intake) -> list[Note]:
        """The prompt's KV is here on every rank, for others to share, too. Hearing it again changes nothing.

        Every write has ended well, so there is none that could still touch its pages.
        """
        if request.state is not State.TRANSFERRING or request.landed:
            return []
        request.landed = request.quiet = True
        self._held.publish(request, len(request.work.prompt))
        return self._join(request)

    def on_first_token(self, first: FirstToken) -> list[Note]:
        """Token 0 of a room, from the prefill group; a second copy says nothing new."""
        request = self._requests[first.room]
        if request.state in OVER or request.generated:
            return []
        request.add(first.token)
        request.cached = first.cached
        return self._join(request)

    def _join(self, request: Intake) -> list[Note]:
        """KV and its metadata are both needed: the later of the two lets the request run."""
        if request.state is not State.TRANSFERRING or not (request.landed and request.generated):
            return []
        request.move(Input.JOINED)
        self._held.batches.join(request)
        return [Emitted(request.room, 0, request.generated[0], request.cached)]

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room in any state; one that is not here yet will be ignored when it comes."""
        request = self._requests.get(abort.room)
        if request is None:
            return [Forgotten(abort.room)]
        if request.state in OVER:
            return []
        return self._end(request, Reason.PEER_ENDED if abort.peer else abort.reason, told_by=abort.peer)

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed, and the pauses and the patience that are over."""
        self._held.queue.wake(now_ms)
        late = self._held.deadlines.late(now_ms)
        notes = [note for room in late for note in self._end(self._requests[room], Reason.DEADLINE, told_by=None)]
        return notes + [CutOff(peer) for peer in self._held.quarantine.overdue(now_ms)]

    def _end(self, request: Intake, reason: Reason, told_by: str | None) -> list[Note]:
        """End a request. The client hears at once; pages stay for whoever may still use them."""
        notes: list[Note] = [Ended(request.room, reason)]
        # Who told us is told back if it could still write: its quiet may have come before this room was here.
        unsettled = request.state is State.TRANSFERRING and not request.quiet
        if request.state in ARRIVING and request.work.peer and (unsettled or not told_by):
            notes.append(ToldPeer(request.room, request.work.peer, reason))
        state = request.move(Input.ENDED_IN_FLIGHT if request.flying else Input.ENDED)
        self._held.withdraw(request)
        if state is State.QUARANTINED:
            if not request.quiet:
                assert request.work.peer is not None
                self.pool.quarantine(request.room)
                self._held.quarantine.hold(request.room, request.work.peer)
                return notes
            state = request.move(Input.QUIET)
        return notes + self._held.leave(request) if state is State.GONE else notes

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """A running request's next token; one that ended meanwhile only gives its pages back."""
        request = self._requests[row.room]
        request.flying = False
        if request.state is not RUNNING and request.move(Input.HARVESTED) is State.GONE:
            return self._held.leave(request)
        if not tokens:
            return self._end(request, Reason.NOT_A_NUMBER, told_by=None)
        notes: list[Note] = []
        for token in tokens:
            index = len(request.generated)
            request.add(token)
            notes.append(Emitted(row.room, index, token))
            reason = ending(request.work, index + 1, token)
            if reason is not None:
                self._held.publish(request, request.position, leaving=True)
                return notes + self._end(request, reason, told_by=None)
        return notes

    def decide(self, slot: Slot, now_ms: int) -> Decision:
        """Who runs may grow before others get pages; who gave theirs gets them back before anybody new."""
        del now_ms
        rows = self._held.batches.plan(slot)
        asks, notes = self._retraction.retract()
        asks += self._retraction.resume(MAX_ASKS - len(asks))
        if not self._held.yielding:
            asks += self._admission.ask(MAX_ASKS - len(asks))
        return Decision(rows, asks, notes)

    def polls(self) -> dict[Room, list[Question]]:
        """Whether KV that is on its way has failed, or is here; where it is, whether the first token is lost."""
        coming = [one for one in self._requests.values() if one.state is State.TRANSFERRING]
        return {one.room: [Question.INTACT] if one.landed else [Question.INTACT, Question.LANDED] for one in coming}

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """Round robin over the slots that can run something now, else an idle one for newcomers to join."""
        return self._held.batches.next_slot(after, flights.busy(returned))

    def wake_ms(self) -> int | None:
        """The next deadline, or the end of a back-off or of somebody's patience."""
        times = (self._held.deadlines.next_ms, self._held.queue.wake_ms, self._held.quarantine.next_ms)
        return min((time for time in times if time is not None), default=None)

    def held(self) -> list[tuple[Held, int]]:
        """Rooms that have ended and wait for their peer, with how many pages each."""
        return [(one, len(self._requests[one.room].pages)) for one in self._held.quarantine]

    def states(self) -> list[str]:
        """The state of each request, by name."""
        return [request.state.value for request in self._requests.values()]

    def lengths(self) -> tuple[int, ...]:
        """Requests in all states, those that wait for pages, those that run."""
        held = self._held
        return len(self._requests), len(held.queue) + len(held.yielding), len(held.batches)
