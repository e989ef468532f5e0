"""The life of a request on the prefill group, as a table."""

import enum
from dataclasses import dataclass, field

from tandem.core.ids import PageId, Room
from tandem.core.prefixes import TOKEN_BYTES, packed
from tandem.core.queue import Place
from tandem.core.requests import Work
from tandem.core.tables import follow


class State(enum.Enum):
    """Where a request is. GONE has no row: the room has left the table."""

    COMPILING = "compiling"  # waits for the decode group's grants on every rank, and for its grammar
    BOOTSTRAPPING = "bootstrapping"  # waits for the grants alone
    GRANTED = "granted"  # waits for its grammar alone
    WAITING = "waiting"  # waits for pages
    RUNNING = "running"  # chunks are being scheduled, or fly
    SENDING = "sending"  # token 0 is known; the last layers are on their way
    DRAINING = "draining"  # ended early; somebody may still read its pages
    GONE = "gone"


class Input(enum.Enum):
    """What can happen to it."""

    BOOTSTRAPPED = "bootstrapped"
    COMPILED = "compiled"  # rank 0 has compiled its grammar
    ADMITTED = "admitted"
    SAMPLED = "sampled"
    FINISHED = "finished"  # token 0 was its last
    ENDED = "ended"  # abort, deadline or failure
    QUIET = "quiet"


NEXT: dict[tuple[State, Input], State] = {
    (State.COMPILING, Input.COMPILED): State.BOOTSTRAPPING,
    (State.COMPILING, Input.BOOTSTRAPPED): State.GRANTED,
    (State.COMPILING, Input.ENDED): State.GONE,
    (State.GRANTED, Input.COMPILED): State.WAITING,
    (State.GRANTED, Input.ENDED): State.GONE,
    (State.BOOTSTRAPPING, Input.BOOTSTRAPPED): State.WAITING,
    (State.BOOTSTRAPPING, Input.ENDED): State.GONE,
    (State.WAITING, Input.ADMITTED): State.RUNNING,
    (State.WAITING, Input.ENDED): State.GONE,
    (State.RUNNING, Input.SAMPLED): State.SENDING,
    (State.RUNNING, Input.FINISHED): State.DRAINING,
    (State.RUNNING, Input.ENDED): State.DRAINING,
    (State.SENDING, Input.ENDED): State.DRAINING,
    (State.SENDING, Input.QUIET): State.GONE,
    (State.DRAINING, Input.QUIET): State.GONE,
}


PREPARING = (State.COMPILING, State.BOOTSTRAPPING, State.GRANTED)
"""States of a request that is not complete yet."""


def beginning(work: Work) -> State:
    """Nothing is granted to who will not be handed over."""
    if work.grammar:
        return State.COMPILING if work.peer else State.GRANTED
    return State.BOOTSTRAPPING if work.peer else State.WAITING


@dataclass(slots=True)
class Handoff:
    """One request on its way through the prefill group."""

    work: Work
    place: Place
    state: State
    pages: tuple[PageId, ...] = ()
    flying: int = 0  # chunks whose return is not in
    scheduled: int = 0  # prompt tokens that need no plan any more: a plan has taken them, or they were cached
    cached: int = 0  # prompt tokens that were
    quiet: bool = False  # nobody can touch its pages; the verdict may overtake the harvest that brings token 0
    fenced: bool = False  # that is so because the peer has been cut off: what it has there is not for us to say
    tokens: bytes = field(init=False, repr=False)  # the prompt as the page pool compares it

    def __post_init__(self) -> None:
        self.tokens = packed(self.work.prompt)

    @property
    def room(self) -> Room:
        """The request's key."""
        return self.work.room

    @property
    def remaining(self) -> int:
        """Prompt tokens that no plan has taken yet."""
        return len(self.work.prompt) - self.scheduled

    def first_tokens(self, count: int) -> bytes:
        """The first `count` tokens of the prompt as the page pool compares them."""
        return self.tokens[: count * TOKEN_BYTES]

    def move(self, happened: Input) -> State:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(NEXT, self.state, happened, self.room)
        return self.state
