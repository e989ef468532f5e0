"""What a rank wants done. The driver does it; in the simulator, the world does."""

from dataclasses import dataclass

from tandem.core.ids import LayerId, PageId, RankId, Room
from tandem.core.inputs import FirstToken
from tandem.core.messages import (
    BallotBack,
    Baton,
    Cancelled,
    Commit,
    Done,
    Evicted,
    Fact,
    Grant,
    Hidden,
    Quiet,
    Return,
    Token,
)
from tandem.core.plan import Plan


@dataclass(frozen=True, slots=True)
class SendNext:
    """To the next rank of the ring; from the last rank, to rank 0."""

    message: Baton | Return | BallotBack


@dataclass(frozen=True, slots=True)
class SendHidden:
    """The hidden states that the engine computed for this tick, to the next rank."""

    header: Hidden


@dataclass(frozen=True, slots=True)
class Launch:
    """Run this plan on the engine. Every rank but 0 has the tick's hidden states at hand."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Observe:
    """Put a fact into the PPConsensusStore."""

    room: Room
    fact: Fact


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what is kept by room outside the core: this rank's column of the PPConsensusStore, the way to its router."""

    room: Room


@dataclass(frozen=True, slots=True)
class Post:
    """Write pages of one layer into a decode rank's memory: `blocks` pairs (source page, destination page)."""

    ticket: int
    room: Room
    peer: str
    rank: RankId
    layer: LayerId
    blocks: tuple[tuple[PageId, PageId], ...]
    sampled: tuple[int, ...] = ()  # which blocks to digest, by their place in `blocks`


@dataclass(frozen=True, slots=True)
class Fence:
    """Let nothing of this group land in our pages or read from them any more; then say Fenced."""

    group: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare blocks of a commit with what was sent, (page, CRC-32) each; then say Verified."""

    commit: Commit
    checks: tuple[tuple[PageId, int], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Fail the posts of a room that have not begun."""

    room: Room


@dataclass(frozen=True, slots=True)
class BackUp:
    """Copy all layers of these pages to host memory, after the forwards launched so far; then say BackedUp."""

    room: Room
    pages: tuple[PageId, ...]
    host_pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Copy all layers of these host pages back, before any forward launched later."""

    room: Room
    host_pages: tuple[PageId, ...]
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Compile:
    """Compile a room's grammar, beside all else; then say Compiled."""

    room: Room
    grammar: str


@dataclass(frozen=True, slots=True)
class TellRouter:
    """Rank 0: to the router that submitted the room."""

    message: Token | Done | Evicted


@dataclass(frozen=True, slots=True)
class TellPeer:
    """To one rank of another group."""

    group: str
    rank: RankId
    message: Grant | Commit | FirstToken | Quiet | Cancelled


Effect = (
    SendNext
    | SendHidden
    | Launch
    | Observe
    | Forget
    | Post
    | Drop
    | Fence
    | Verify
    | BackUp
    | Restore
    | Compile
    | TellRouter
    | TellPeer
)
