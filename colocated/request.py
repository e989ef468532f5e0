"""The life of a request in a colocated group, as a table."""

import enum
from dataclasses import dataclass, field

from tandem.core.ids import NO_SLOT, PageId, Room, Slot
from tandem.core.plan import NO_HISTORY, Row, history
from tandem.core.prefixes import TOKEN_BYTES, packed
from tandem.core.queue import Place
from tandem.core.requests import Work, pages_for
from tandem.core.tables import follow


class State(enum.Enum):
    """Where a request is. GONE has no row: the room has left the table."""

    COMPILING = "compiling"  # waits for its grammar
    QUEUED = "queued"  # waits for pages
    FILLING = "filling"  # has pages; chunks of its text are being scheduled, or fly
    RUNNING = "running"  # in a slot: one token after the other
    FINISHING = "finishing"  # ended while a forward was in flight
    GONE = "gone"


class Input(enum.Enum):
    """What can happen to it."""

    COMPILED = "compiled"  # rank 0 has compiled its grammar
    ADMITTED = "admitted"
    FILLED = "filled"  # all its text has been computed, and the next token is here
    MADE_ROOM = "made room"  # an older one needs its pages: what it has computed is lost
    ENDED = "ended"  # abort, deadline or its last token, with nothing in flight
    ENDED_IN_FLIGHT = "ended in flight"
    HARVESTED = "harvested"  # the last forward in flight came back


NEXT: dict[tuple[State, Input], State] = {
    (State.COMPILING, Input.COMPILED): State.QUEUED,
    (State.COMPILING, Input.ENDED): State.GONE,
    (State.QUEUED, Input.ADMITTED): State.FILLING,
    (State.QUEUED, Input.ENDED): State.GONE,
    (State.FILLING, Input.FILLED): State.RUNNING,
    (State.FILLING, Input.ENDED): State.GONE,
    (State.FILLING, Input.ENDED_IN_FLIGHT): State.FINISHING,
    (State.RUNNING, Input.MADE_ROOM): State.QUEUED,
    (State.RUNNING, Input.ENDED): State.GONE,
    (State.RUNNING, Input.ENDED_IN_FLIGHT): State.FINISHING,
    (State.FINISHING, Input.HARVESTED): State.GONE,
}


RUNNING, FINISHING = State.RUNNING, State.FINISHING
"""By names of their own for what is done for every row of every tick: in Python 3.11 looking up a member is a call."""


@dataclass(slots=True, eq=False)
class Request:
    """One request: its text is the prompt and all that was generated. The newest token has no KV yet."""

    work: Work
    place: Place
    state: State = State.QUEUED
    pages: tuple[PageId, ...] = ()
    scheduled: int = 0  # tokens of the text that need no plan any more: a plan has taken them, or they were cached
    computed: int = 0  # tokens of the text whose KV every rank has, or will have before it computes anything else
    cached: int = 0  # tokens of the text that were, at its last admission
    chunks: int = 0  # of the text, in flight
    generated: list[int] = field(default_factory=list)
    order: int = 0  # of its last admission: later ones make room first
    slot: Slot = NO_SLOT
    flying: bool = False  # its next token is being computed
    chosen: bool = False  # runs no more: it makes room as soon as nothing of it is in flight
    blocked_at: int = -1  # the pool's `freed_at` when growth was refused
    room: Room = field(init=False)
    position: int = field(init=False)  # where the next token to feed goes
    text: bytearray = field(init=False, repr=False)  # as the page pool compares it
    looks_back: bool = field(init=False)

    def __post_init__(self) -> None:
        self.room = self.work.room
        self.position = len(self.work.prompt) - 1
        self.text = bytearray(packed(self.work.prompt))
        self.looks_back = self.work.looks_back

    @property
    def tokens(self) -> int:
        """Of the text."""
        return self.position + 1

    @property
    def remaining(self) -> int:
        """Tokens of the text that no plan has taken yet."""
        return self.tokens - self.scheduled

    @property
    def in_flight(self) -> bool:
        """Whether a forward that uses its pages is still to come back."""
        return self.flying or self.chunks > 0

    @property
    def runs(self) -> bool:
        """Whether it computes when its slot does."""
        return self.state is RUNNING and not self.chosen

    def growth_left(self, page_size: int) -> int:
        """Pages it may still ask for when it holds those of its text."""
        return pages_for(self.work.last_position, page_size) - pages_for(self.tokens, page_size)

    def add(self, token: int) -> None:
        """The next token is known."""
        self.generated.append(token)
        self.position += 1
        self.text += token.to_bytes(TOKEN_BYTES, "little")

    def first_tokens(self, count: int) -> bytes:
        """The first `count` tokens of the text as the page pool compares them."""
        return bytes(self.text[: count * TOKEN_BYTES])

    def row(self) -> Row:
        """Feed the newest token."""
        token, sampling = (self.generated[-1],), self.work.sampling
        if not self.looks_back:
            return Row(self.room, token, self.position, self.pages, True, sampling)
        past = history(self.work, self.generated)
        return Row(self.room, token, self.position, self.pages, True, sampling, *past)

    def chunk(self, most: int, page_size: int) -> Row:
        """The next `most` tokens of the text, or what is left; the last chunk samples the token after it."""
        start = self.scheduled
        self.scheduled += min(most, self.remaining)
        self.chunks += 1
        prompt = len(self.work.prompt)
        first, last = max(0, start - prompt), max(0, self.scheduled - prompt)
        tokens = (*self.work.prompt[start : self.scheduled], *self.generated[first:last])
        table = self.pages[: pages_for(self.scheduled, page_size)]
        past = NO_HISTORY if self.remaining else history(self.work, self.generated)
        return Row(self.room, tokens, start, table, not self.remaining, self.work.sampling, *past)

    def land(self, row: Row) -> None:
        """A row of its own came back. Chunks and next tokens are never in flight together."""
        self.computed = row.end
        if self.chunks:
            self.chunks -= 1
        else:
            self.flying = False

    def move(self, happened: Input) -> State:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(NEXT, self.state, happened, self.room)
        return self.state
