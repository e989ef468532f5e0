"""The life of a request on the decode group, as a table."""

import enum
from dataclasses import dataclass, field

from tandem.core.ids import NO_SLOT, PageId, Room, Slot
from tandem.core.plan import Row, history
from tandem.core.prefixes import TOKEN_BYTES, packed
from tandem.core.queue import Place
from tandem.core.requests import Work, pages_for
from tandem.core.tables import follow


class State(enum.Enum):
    """Where a request is. GONE has no row: the room has left the table."""

    COMPILING = "compiling"  # waits for its grammar
    QUEUED = "queued"  # waits for pages
    ASKING = "asking"  # has pages; the prealloc vote is open
    DOOMED = "doomed"  # ended while a vote about it was open
    TRANSFERRING = "transferring"  # its pages are granted: prefill writes into them
    QUARANTINED = "quarantined"  # ended while prefill may still write into its pages
    RUNNING = "running"
    FINISHING = "finishing"  # ended; one more forward has to come back before its pages are free
    RETRACTING = "retracting"  # makes room for an older one; the retract vote is open
    BACKING_UP = "backing up"  # its pages are being copied to host memory
    LEAVING = "leaving"  # ended while its pages were being copied
    RETRACTED = "retracted"  # all it has is on the host: waits for pages
    RESUMING = "resuming"  # has pages again; the resume vote is open
    RESTORING = "restoring"  # runs; that its pages are copied back is certain when its first forward comes back
    GONE = "gone"


class Input(enum.Enum):
    """What can happen to it."""

    COMPILED = "compiled"  # rank 0 has compiled its grammar
    ALLOCATED = "allocated"
    GRANTED = "granted"  # the vote said yes
    REFUSED = "refused"  # the vote said no
    JOINED = "joined"  # KV and first token are here
    CHOSEN = "chosen"  # an older one needs its pages, and host memory has room for them
    EVICTED = "evicted"  # an older one needs its pages, and host memory has no room
    BACKED_UP = "backed up"
    ENDED = "ended"  # abort, deadline, failure or its last token, with nothing in flight
    ENDED_IN_FLIGHT = "ended in flight"
    HARVESTED = "harvested"
    QUIET = "quiet"


NEXT: dict[tuple[State, Input], State] = {
    (State.COMPILING, Input.COMPILED): State.QUEUED,
    (State.COMPILING, Input.ENDED): State.GONE,
    (State.QUEUED, Input.ALLOCATED): State.ASKING,
    (State.QUEUED, Input.ENDED): State.GONE,
    (State.ASKING, Input.GRANTED): State.TRANSFERRING,
    (State.ASKING, Input.REFUSED): State.QUEUED,
    (State.ASKING, Input.ENDED): State.DOOMED,
    (State.DOOMED, Input.GRANTED): State.GONE,
    (State.DOOMED, Input.REFUSED): State.GONE,
    (State.TRANSFERRING, Input.JOINED): State.RUNNING,
    (State.TRANSFERRING, Input.ENDED): State.QUARANTINED,
    (State.QUARANTINED, Input.QUIET): State.GONE,
    (State.RUNNING, Input.CHOSEN): State.RETRACTING,
    (State.RUNNING, Input.EVICTED): State.GONE,
    (State.RUNNING, Input.ENDED): State.GONE,
    (State.RUNNING, Input.ENDED_IN_FLIGHT): State.FINISHING,
    (State.FINISHING, Input.HARVESTED): State.GONE,
    (State.RETRACTING, Input.GRANTED): State.BACKING_UP,
    (State.RETRACTING, Input.REFUSED): State.GONE,
    (State.RETRACTING, Input.ENDED): State.DOOMED,
    (State.BACKING_UP, Input.BACKED_UP): State.RETRACTED,
    (State.BACKING_UP, Input.ENDED): State.LEAVING,
    (State.LEAVING, Input.BACKED_UP): State.GONE,
    (State.RETRACTED, Input.ALLOCATED): State.RESUMING,
    (State.RETRACTED, Input.ENDED): State.GONE,
    (State.RESUMING, Input.GRANTED): State.RESTORING,
    (State.RESUMING, Input.REFUSED): State.GONE,
    (State.RESUMING, Input.ENDED): State.DOOMED,
    (State.RESTORING, Input.HARVESTED): State.RUNNING,
    (State.RESTORING, Input.ENDED): State.FINISHING,
    (State.RESTORING, Input.ENDED_IN_FLIGHT): State.FINISHING,
}

RUNNING = State.RUNNING
"""By a name of its own for what is done for every row of every tick: in Python 3.11 looking up a member is a call."""
OVER = (State.DOOMED, State.QUARANTINED, State.FINISHING, State.LEAVING)
"""States of a request that has ended for its client and only waits to give its pages back."""
RETURNING = (State.DOOMED, State.FINISHING, State.RETRACTING, State.BACKING_UP, State.LEAVING)
"""States in which pages come back soon, whatever anybody does. When quiet comes, nobody here knows."""


@dataclass(slots=True, eq=False)
class Intake:
    """One request on its way into and through a decode slot."""

    work: Work
    place: Place
    state: State = State.QUEUED
    pages: tuple[PageId, ...] = ()
    hit: int = 0  # pages of the prompt that were here already
    host_pages: tuple[PageId, ...] = ()
    backups: int = 0  # copies to host memory that were ordered
    landed: bool = False  # the transferred verdict has come
    quiet: bool = False  # prefill's quiet has come
    generated: list[int] = field(default_factory=list)  # token 0 first
    cached: int = 0  # tokens of the prompt that prefill had in its cache
    order: int = 0  # among the admitted: later ones make room first
    slot: Slot = NO_SLOT
    flying: bool = False
    chosen: bool = False  # runs no more: its pages are taken as soon as nothing of it is in flight
    blocked_at: int = -1  # the pool's `freed_at` when growth was refused
    room: Room = field(init=False)
    position: int = field(init=False)  # where the next token to feed goes: the newest generated one has no KV yet
    prompt: bytes = field(init=False, repr=False)  # as the page pool compares it
    looks_back: bool = field(init=False)

    def __post_init__(self) -> None:
        self.room = self.work.room
        self.position = len(self.work.prompt) - 1
        self.prompt = packed(self.work.prompt)
        self.looks_back = self.work.looks_back

    @property
    def runs(self) -> bool:
        """Whether it computes when its slot does. One that ended while it was copied back runs once more."""
        if self.state is RUNNING:
            return not self.chosen
        return self.state is State.RESTORING or (self.state is State.FINISHING and not self.flying)

    def add(self, token: int) -> None:
        """The next token is known."""
        self.generated.append(token)
        self.position += 1

    def row(self) -> Row:
        """Feed the newest token."""
        token, sampling = (self.generated[-1],), self.work.sampling
        if not self.looks_back:
            return Row(self.room, token, self.position, self.pages, True, sampling)
        past = history(self.work, self.generated)
        return Row(self.room, token, self.position, self.pages, True, sampling, *past)

    def growth_left(self, page_size: int) -> int:
        """Pages it may still ask for until its own maximum."""
        return pages_for(self.work.last_position, page_size) - len(self.pages)

    def first_tokens(self, count: int) -> bytes:
        """The first `count` tokens of prompt and answer as the page pool compares them."""
        answered = self.generated[: max(0, count - len(self.work.prompt))]
        return self.prompt[: count * TOKEN_BYTES] + packed(answered)

    def move(self, happened: Input) -> State:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(NEXT, self.state, happened, self.room)
        return self.state
