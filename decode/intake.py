"""The life of a request on the decode group, as a table."""

import enum
from dataclasses import dataclass, field

from tandem.core.ids import NO_SLOT, PageId, Room, Slot
from tandem.core.requests import Work, pages_for
from tandem.core.tables import follow


class State(enum.Enum):
    """Where a request is. GONE has no row: the room has left the table."""

    QUEUED = "queued"  # waits for pages
    ASKING = "asking"  # has pages; the prealloc vote is open
    DOOMED = "doomed"  # ended while its vote was open
    TRANSFERRING = "transferring"  # its pages are granted: prefill writes into them
    RUNNING = "running"
    FINISHING = "finishing"  # ended while its forward was in flight
    QUARANTINED = "quarantined"  # ended while prefill may still write into its pages
    GONE = "gone"


class Input(enum.Enum):
    """What can happen to it."""

    ALLOCATED = "allocated"
    GRANTED = "granted"  # the vote said yes
    REFUSED = "refused"  # the vote said no
    JOINED = "joined"  # KV and first token are here
    ENDED = "ended"  # abort, deadline, failure or its last token, with nothing in flight
    ENDED_IN_FLIGHT = "ended in flight"
    HARVESTED = "harvested"
    QUIET = "quiet"


NEXT: dict[tuple[State, Input], State] = {
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
    (State.RUNNING, Input.ENDED): State.GONE,
    (State.RUNNING, Input.ENDED_IN_FLIGHT): State.FINISHING,
    (State.FINISHING, Input.HARVESTED): State.GONE,
}

OVER = (State.DOOMED, State.FINISHING, State.QUARANTINED)
"""States of a request that has ended for its client and only waits to give its pages back."""


@dataclass(slots=True)
class Intake:
    """One request on its way into and through a decode slot."""

    work: Work
    deadline_ms: int
    number: int  # in order of arrival
    state: State = State.QUEUED
    pages: tuple[PageId, ...] = ()
    retry_ms: int = 0  # after a no, do not ask before this
    landed: bool = False  # the transferred verdict has come
    quiet: bool = False  # prefill's quiet has come
    generated: list[int] = field(default_factory=list)  # token 0 first
    slot: Slot = NO_SLOT
    flying: bool = False
    blocked_at: int = -1  # the pool's `freed_at` when growth was refused

    @property
    def room(self) -> Room:
        """The request's key."""
        return self.work.room

    @property
    def position(self) -> int:
        """Where the next token to feed goes: the newest generated token has no KV yet."""
        return len(self.work.prompt) + len(self.generated) - 1

    def growth_left(self, page_size: int) -> int:
        """Pages it may still ask for until its own maximum."""
        return pages_for(self.work.last_position, page_size) - len(self.pages)

    def move(self, happened: Input) -> State:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(NEXT, self.state, happened, self.room)
        return self.state
