"""What a scheduler and a rank ask of the role they are given: prefill's, decode's or the colocated one."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tandem.core.effects import Effect
from tandem.core.events import Event
from tandem.core.ids import Room, Slot, Tick
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.pages import PagePool
from tandem.core.plan import Ask, Note, Plan, Question, Row
from tandem.core.quarantine import Held
from tandem.core.requests import Reason, Work
from tandem.core.slots import Flights


class Decision(NamedTuple):
    """What a role decides in one step: rows for the slot, questions for the next baton, and what to tell."""

    rows: Sequence[Row] = ()
    asks: Sequence[Ask] = ()
    notes: Sequence[Note] = ()


NOTHING = Decision()


class Role(Protocol):
    """The replicated half: pure, equal on all ranks. Each method takes one input and returns notes for the plan."""

    kinds: tuple[Kind, ...]
    """The verdicts this role can be given."""
    pool: PagePool

    def knows(self, room: Room) -> bool:
        """Whether the room is in the replicated table."""
        ...

    def on_tokens(self, row: Row, tokens: tuple[int, ...]) -> list[Note]:
        """A row of an earlier plan came back; `tokens` is empty if it samples nothing, or could not: then it fails."""
        ...

    def on_outcome(self, ask: Ask, yes: bool, now_ms: int) -> list[Note]: ...

    def on_verdict(self, verdict: Verdict) -> list[Note]: ...

    def on_submit(self, submit: Submit, now_ms: int) -> list[Note]: ...

    def refuse(self, work: Work, reason: Reason) -> list[Note]:
        """Answer a request that does not get into the table."""
        ...

    def on_first_token(self, first: FirstToken) -> list[Note]: ...

    def on_abort(self, abort: Abort) -> list[Note]:
        """End a room; one that is not in the table may still need an answer to the peer group."""
        ...

    def expire(self, now_ms: int) -> list[Note]:
        """End the requests whose deadline has passed."""
        ...

    def decide(self, slot: Slot, now_ms: int) -> Decision:
        """What this slot runs, who makes room, and who gets pages; what needs a vote is asked."""
        ...

    def polls(self) -> dict[Room, list[Question]]:
        """What could move a request now, a failure before all else; asked under `transfer_consensus` ring only."""
        ...

    def next_slot(self, after: Slot, flights: Flights, returned: frozenset[Tick]) -> tuple[Slot, bool]:
        """The slot to name next, counting the ticks in `returned` as landed, and whether it can run something."""
        ...

    def wake_ms(self) -> int | None:
        """When time alone will change something: the next deadline or back-off."""
        ...

    def held(self) -> Sequence[tuple[Held, int]]:
        """Rooms that have ended and wait for their peer group, with how many pages each: for people."""
        ...

    def states(self) -> Sequence[str]:
        """The state of each request, by name: for people."""
        ...

    def lengths(self) -> tuple[int, ...]:
        """Queue lengths, for the digest and for people."""
        ...


class Courier(Protocol):
    """The local half: carries KV out of (prefill) or into (decode) this rank. May differ between ranks."""

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Act on the plan's rows and notes as far as they concern KV."""
        ...

    def on_event(self, event: Event) -> list[Effect]: ...

    def answer(self, ask: Ask) -> bool:
        """This rank's vote; a yes reserves what it promises."""
        ...

    def open_rooms(self) -> int:
        """Rooms this rank keeps anything for."""
        ...
