"""The one door in: everything that may change replicated state, and the frame that carries it.

A local observation has no place in here; only rank 0 builds frames, and every rank applies them in order.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.core.config import MAX_TICK_TOKENS
from tandem.core.ids import Room, Slot, Tick
from tandem.core.requests import Logprobs, Reason, Work

MAX_ARRIVALS = 256
"""Arrivals in one frame; the rest wait for the next one."""

TickTokens = Annotated[int, Meta(ge=1, le=MAX_TICK_TOKENS)]


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A new request. Time on the wire is what remains: the receiver adds it to its own clock."""

    work: Work
    remaining_ms: int
    whole: bool = False
    """Its answer may be told in portions, as nobody reads it before its end. For rank 0 alone: no frame has it."""


class FirstToken(msgspec.Struct, frozen=True, array_like=True, tag="first"):
    """Token 0 of a room, sampled by the prefill group, for the decode group."""

    room: Room
    token: int
    logprobs: Logprobs | None = None  # for rank 0 alone: no frame has it
    cached: int = 0  # tokens of the prompt that were in prefill's cache: decode tells token 0 again, maybe first


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """End exactly this room: the client left, an operator said so, or the peer group ended it."""

    room: Room
    reason: Reason
    peer: str | None = None  # the group that ended it, if it was one: it needs no telling, only an answer


class Order(enum.Enum):
    """What an operator can tell a whole group."""

    PAUSE = "pause"  # start no more forwards; what is asked for waits
    RESUME = "resume"  # end a pause and a drain
    FLUSH = "flush"  # forget all cached prefixes
    DRAIN = "drain"  # refuse new requests, finish those that are here
    RELEASE = "release"  # cut a peer group off, so that what is held for it can be given back


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control"):
    """An operator's order; effective at one tick on all ranks and slots."""

    order: Order
    peer: str = ""  # the group that a release is about


class Knobs(msgspec.Struct, frozen=True, array_like=True, tag="knobs"):
    """New values for what may change while a group serves. None: as it is."""

    max_prefill_tokens: TickTokens | None = None
    chunked_prefill_size: TickTokens | None = None
    chunk_table: tuple[TickTokens, ...] | None = None
    """Tokens of a chunk that begins in position bucket i (`controls.BUCKET` tokens each); empty: all chunks alike."""


Arrival = Submit | FirstToken | Abort | Control | Knobs


class Kind(enum.Enum):
    """What a verdict is about. Fate and quiet are separate: bad news never frees memory."""

    BOOTSTRAPPED = "bootstrapped"  # prefill: every rank holds the grants it needs
    TRANSFERRED = "transferred"  # decode: every layer of every token landed on every rank
    FAILED = "failed"  # any rank failed
    CORRUPTED = "corrupted"  # decode: any rank has read other bytes than were sent
    QUIET = "quiet"  # nobody can touch the room's pages any more, on either side
    FENCED = "fenced"  # nobody can touch this group's pages of the room any more; the peer looks after its own
    COMPILED = "compiled"  # rank 0 has compiled the room's grammar
    BAD_GRAMMAR = "bad grammar"  # rank 0 could not, within the limits
    BACKED_UP = "backed up"  # decode: every rank has copied the room's pages to host memory


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """A decision about one room, made once by rank 0; the outcome is in it, ranks look nothing up."""

    room: Room
    kind: Kind
    nth: int = 1  # a room may be backed up more than once


Tokens = tuple[tuple[Room, tuple[int, ...]], ...]
"""Sampled token ids, one tuple per row that samples, in the plan's row order; empty where logits were no numbers."""


TokenLogprobs = tuple[Logprobs | None, ...]
"""One for each token of `Tokens`, in their order; empty: none was asked for. They end at rank 0: no frame has them."""


class Harvest(msgspec.Struct, frozen=True, array_like=True):
    """What the tick `tick` sampled."""

    tick: Tick
    tokens: Tokens


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The folded ballot that rode on baton `tick`: bit i answers question i asked by step(tick - 1)."""

    tick: Tick
    yes: int


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Everything that may change replicated state in one tick."""

    tick: Tick
    slot: Slot
    now_ms: int  # rank 0's monotonic milliseconds since the epoch began; never decreases
    arrivals: tuple[Arrival, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    harvests: tuple[Harvest, ...] = ()
    ballots: tuple[Outcome, ...] = ()
