"""Prefill's half of the replicated scheduler: bootstrap, admission, chunks, hand-off."""

from prefill.handoff import PREPARING, Handoff, Input, State, beginning
from tandem.core.config import Limits
from tandem.core.controls import Controls
from tandem.core.deadlines import Deadlines
from tandem.core.errors import IllegalTransition
from tandem.core.ids import NO_SLOT, Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import (
    NO_HISTORY,
    Ask,
    CutOff,
    Emitted,
    Ended,
    Forgotten,
    HandedOff,
    Note,
    Opened,
    Question,
    Row,
    Settled,
    Stopped,
    ToldPeer,
    Uncompiled,
    history,
)
from tandem.core.quarantine import Held, Quarantine
from tandem.core.queue import Place, Queue
from tandem.core.recent import Recent
from tandem.core.requests import Reason, Work, ending, pages_for, too_large
from tandem.core.role import Decision
from tandem.core.slots import Flights
from tandem.core.turns import Turns

WINDOW = Slot(0)
"""Prefill has one slot: chunks of one prompt flow through consecutive ticks."""


class PrefillRole:
    """FCFS, with priority that ages.

    A whole prompt's pages are reserved at admission: holding a part while waiting for the rest deadlocks.
    """

    kinds: tuple[Kind, ...] = (
        Kind.BOOTSTRAPPED,
        Kind.COMPILED,
        Kind.BAD_GRAMMAR,
        Kind.FAILED,
        Kind.QUIET,
        Kind.FENCED,
    )

    def __init__(self, limits: Limits, controls: Controls, window: int) -> None:
        self.pool = PagePool(limits.num_pages, limits.page_size, prefix_cache=limits.prefix_cache)
        self._limits = limits
        self._controls = controls
        self._window = window  # ticks in flight
        self._requests: dict[Room, Handoff] = {}
        self._deadlines = Deadlines()  # of those that have not ended
        self._quarantine = Quarantine(limits.quiesce_ms)  # those that drain
        self._fenced = Recent()  # rooms that have left with their peer cut off
        self._waiting: Queue[Handoff] = Queue()  # bootstrapped, without pages
        self._running: Queue[Handoff] = Queue()  # chunks left to schedule
        self._turns = Turns()
        self._submitted = 0

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        return room in self._requests

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]:
        """A new request waits for its grants, and for its grammar if it has one; then, or at once, for pages."""
        work = submit.work
        if too_large(work, self._limits, len(work.prompt)):
            return self.refuse(work, Reason.TOO_LARGE)
        self._submitted += 1
        place = Place(work.due_ms(now_ms), self._submitted)
        request = self._requests[work.room] = Handoff(work, place, beginning(work))
        self._deadlines.add(work.room, now_ms + submit.remaining_ms)
        if request.state is State.WAITING:
            self._waiting.add(request)
        uncompiled = [Uncompiled(work.room, work.grammar)] if work.grammar else []
        return [Opened(work.room, work.peer, len(work.prompt)), *uncompiled]

    def refuse(self, work: Work, reason: Reason) -> list[Note]:
        """Nothing was granted or posted, so the peer may take its pages back at once."""
        notes: list[Note] = [Ended(work.room, reason)]
        if work.peer:
            notes += [ToldPeer(work.room, work.peer, reason), Settled(work.room, work.peer)]
        return [*notes, Forgotten(work.room)]

    def on_first_token(self, first: FirstToken) -> list[Note]:
        """Only decode groups are sent first tokens."""
        del first
        return []

    def on_verdict(self, verdict: Verdict) -> list[Note]:
        """Bootstrapped and compiled move a request on, the bad ones end it, quiet and fenced free its pages."""
        request = self._requests[verdict.room]
        match verdict.kind:
            case Kind.BOOTSTRAPPED:
                return self._prepare(request, Input.BOOTSTRAPPED) if request.work.peer else []
            case Kind.COMPILED:
                return self._prepare(request, Input.COMPILED)
            case Kind.BAD_GRAMMAR:
                return self._end(request, Reason.BAD_GRAMMAR, None)
            case Kind.FAILED:
                return [] if request.state is State.DRAINING else self._end(request, Reason.TRANSFER_FAILED, None)
            case _:
                request.fenced |= verdict.kind is Kind.FENCED and not request.quiet
                request.quiet = True
                return self._settle(request)

    def _prepare(self, request: Handoff, happened: Input) -> list[Note]:
        """Grants and grammar are both needed: the later of the two lets the request wait for pages."""
        if request.state in PREPARING and request.move(happened) is State.WAITING:
            self._waiting.add(request)
        return []

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room in any state. The peer group is answered even about a room that was never here.

        Not about one whose peer was cut off: what has left for it may still land there, and only its own fence helps.
        """
        request = self._requests.get(abort.room)
        if request is None:
            peer = None if abort.room in self._fenced else abort.peer
            answer: list[Note] = [Settled(abort.room, peer)] if peer else []
            return [*answer, Forgotten(abort.room)]
        if request.state is State.DRAINING:
            return []
        reason = Reason.PEER_ENDED if abort.peer else abort.reason
        return self._end(request, reason, abort.peer)

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed, and cut peers off that others have waited for too long."""
        late = self._deadlines.late(now_ms)
        notes = [note for room in late for note in self._end(self._requests[room], Reason.DEADLINE, None)]
        return notes + [CutOff(peer) for peer in self._quarantine.overdue(now_ms)]

    def _end(self, request: Handoff, reason: Reason, told_by: str | None) -> list[Note]:
        """End a request early: tell the router and the peer, then stop what is under way."""
        self._waiting.discard(request)
        self._running.discard(request)
        self._deadlines.drop(request.room)
        peer = None if told_by else request.work.peer
        notes: list[Note] = [Ended(request.room, reason)]
        if peer:
            notes.append(ToldPeer(request.room, peer, reason))
        if request.move(Input.ENDED) is State.GONE:
            return notes + self._leave(request)
        return [*notes, *self._drain(request)]

    def _drain(self, request: Handoff) -> list[Note]:
        """What is under way has to end; nothing more is begun."""
        self._hold(request)
        return [Stopped(request.room), *self._settle(request)]

    def _hold(self, request: Handoff) -> None:
        """The peer is waited for, but not while chunks of our own fly: it could not help that they take long."""
        if request.work.peer and not request.flying:
            self._quarantine.hold(request.room, request.work.peer)

    def _settle(self, request: Handoff) -> list[Note]:
        """Quiet, and nothing left to come: the room can go. While token 0 is on its way it cannot."""
        if not request.quiet or request.state is State.RUNNING:
            return []
        request.move(Input.QUIET)
        return self._leave(request)

    def _leave(self, request: Handoff) -> list[Note]:
        """Nobody can touch the request's pages any more; if its peer was not cut off, nor those over there."""
        del self._requests[request.room]
        self._deadlines.drop(request.room)
        self._quarantine.drop(request.room)
        self.pool.release(request.room)
        peer = request.work.peer
        if request.fenced:
            self._fenced.add(request.room)
        settled: list[Note] = [Settled(request.room, peer)] if peer and not request.fenced else []
        return [*settled, Forgotten(request.room)]

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """The pages of a request that goes on are for others to share from now on; the last chunk brings token 0."""
        request = self._requests.get(row.room)
        if request is None:
            return []
        request.flying -= 1
        if request.state is State.DRAINING:
            self._hold(request)
        if request.state is not State.RUNNING:
            return []
        if row.samples and not tokens:
            return self._end(request, Reason.NOT_A_NUMBER, None)
        self._publish(request, row)
        return self._hand_off(request, *tokens) if tokens else []

    def _publish(self, request: Handoff, row: Row) -> None:
        """Others may share the pages that this row has filled, and those before them."""
        size = self.pool.page_size
        full = row.end // size
        if full > row.start // size:
            tokens = request.first_tokens(full * size)
            self.pool.publish(request.room, request.work.salt, tokens, request.pages[:full])

    def _hand_off(self, request: Handoff, token: int) -> list[Note]:
        """Decode goes on from token 0, unless that was all the request wanted."""
        room = request.room
        emitted = Emitted(room, 0, token, request.cached)
        reason = ending(request.work, 1, token)
        if request.work.peer is None:
            request.move(Input.FINISHED)
            request.move(Input.QUIET)  # a sampled row has passed every rank, and nothing was posted
            return [emitted, Ended(room, reason or Reason.LENGTH), *self._leave(request)]
        if reason is None:
            request.move(Input.SAMPLED)
            return [emitted, HandedOff(room, request.work.peer, token, request.cached), *self._settle(request)]
        request.move(Input.FINISHED)
        self._deadlines.drop(room)
        told = ToldPeer(room, request.work.peer, Reason.PEER_ENDED)
        return [emitted, Ended(room, reason), told, *self._drain(request)]

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]:
        """Prefill asks for no vote."""
        raise IllegalTransition(f"{ask} came back with {yes} at {now_ms}")

    def decide(self, slot: Slot, now_ms: int) -> Decision:
        """Admit first: who gets pages now may run now."""
        del now_ms
        self._admit()
        return Decision(self._rows(slot))

    def polls(self) -> dict[Room, list[Question]]:
        """Whether anything has failed, and when nothing of ours can touch a room's pages any more."""
        wanted: dict[Room, list[Question]] = {}
        for request in self._requests.values():
            if request.work.peer and request.state is not State.DRAINING:
                wanted.setdefault(request.room, []).append(Question.INTACT)
            if request.state in (State.SENDING, State.DRAINING):
                wanted.setdefault(request.room, []).append(Question.QUIET)
        return wanted

    def _admit(self) -> None:
        """The head of the queue waits until all its pages can be given, nobody overtakes it."""
        for request in self._turns.served(self._waiting, self._allocate, lambda: self.pool.news):
            request.move(Input.ADMITTED)
            self._running.add(request)

    def _allocate(self, request: Handoff) -> bool:
        """Share what is cached and add the rest. One token at least is computed: token 0 is drawn from its logits."""
        prompt, size = len(request.work.prompt), self.pool.page_size
        pages, most = pages_for(prompt, size), (prompt - 1) // size

        def fits(hit: int) -> bool:
            return pages - hit <= self.pool.available

        hit = self.pool.share(request.room, request.work.salt, request.tokens, most, fits)
        if hit is None:
            return False
        request.pages = hit + self.pool.allocate(request.room, pages - len(hit))
        request.scheduled = request.cached = len(hit) * size
        return True

    def _rows(self, slot: Slot) -> list[Row]:
        """Chunks within the tick's budget; one prompt gets at most one of them."""
        budget = self._controls.max_prefill_tokens if slot != NO_SLOT else 0
        rows = []
        for request in self._running:
            if not budget:
                break
            row = self._chunk(request, min(budget, self._controls.chunk_tokens(request.scheduled)))
            budget -= len(row.tokens)
            rows.append(row)
        return rows

    def _chunk(self, request: Handoff, most: int) -> Row:
        start, count = request.scheduled, min(most, request.remaining)
        request.scheduled += count
        request.flying += 1
        last = not request.remaining
        if last:
            self._running.discard(request)
        tokens = request.work.prompt[start : request.scheduled]
        table = request.pages[: pages_for(request.scheduled, self.pool.page_size)]
        past = history(request.work) if last else NO_HISTORY
        return Row(request.room, tokens, start, table, last, request.work.sampling, *past)

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """The window, if it has room for another tick."""
        del after
        full = len(flights) - len(returned) >= self._window
        return (NO_SLOT, False) if full else (WINDOW, bool(self._running))

    def wake_ms(self) -> int | None:
        """The next deadline, or the end of somebody's patience."""
        times = (self._deadlines.next_ms, self._quarantine.next_ms)
        return min((time for time in times if time is not None), default=None)

    def held(self) -> list[tuple[Held, int]]:
        """Rooms that have ended and wait for their peer, with how many pages each."""
        return [(one, len(self._requests[one.room].pages)) for one in self._quarantine]

    def states(self) -> list[str]:
        """The state of each request, by name."""
        return [request.state.value for request in self._requests.values()]

    def lengths(self) -> tuple[int, ...]:
        """Requests in all states, those that wait for pages, those with chunks to schedule."""
        return len(self._requests), len(self._waiting), len(self._running)
