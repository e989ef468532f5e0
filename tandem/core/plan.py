"""What every rank does at one tick: rows to compute, questions to vote on, notes to act upon. Equal on all ranks."""

import enum
from collections.abc import Sequence

import msgspec

from tandem.core.ids import PageId, Room, Slot, Tick
from tandem.core.requests import Reason, Sampling, Work


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of consecutive tokens of one request.

    `pages[i]` holds tokens `[i * page_size, (i + 1) * page_size)` and the table covers `start + len(tokens)` tokens.
    The tokens before `start` are in the cache already. A row that samples yields the token at position
    `start + len(tokens)`, drawn from its last token's logits.
    """

    room: Room
    tokens: tuple[int, ...]
    start: int
    pages: tuple[PageId, ...]
    samples: bool
    sampling: Sampling
    past: tuple[int, ...] = ()
    """If it samples and its sampling looks back, or its answer has a grammar: all tokens before the one to draw."""
    generated: int = 0  # so many last ones of `past` are of the answer
    grammar: str = ""  # as in Work

    @property
    def end(self) -> int:
        """Tokens in the cache once this row has run."""
        return self.start + len(self.tokens)


History = tuple[tuple[int, ...], int, str]
"""`past`, `generated` and `grammar` of a row."""
NO_HISTORY: History = (), 0, ""


def history(work: Work, answer: Sequence[int] = ()) -> History:
    """Of a row that draws the token after this beginning of the answer; nothing if the token does not depend on it."""
    if not work.looks_back:
        return NO_HISTORY
    return (*work.prompt, *answer), work.generated + len(answer), work.grammar


MAX_ASKS = 64
"""Questions of one tick: a ballot is an unsigned 64-bit number on the wire. The rest is asked by the next tick."""


class Question(enum.Enum):
    """What a two-pass ring vote can be about. The last three are polls, asked under `transfer_consensus` ring only."""

    PREALLOC = "prealloc"  # my sessions to the prefill ranks that own my layers are open
    RETRACT = "retract"  # my host copy can be taken
    RESUME = "resume"  # my host copy is readable
    LANDED = "landed"  # all of my layers are here
    INTACT = "intact"  # nothing has failed here
    QUIET = "quiet"  # nothing here can touch the room's pages any more


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Opens a vote on the next baton. `peer`: for prealloc, the prefill group whose sessions must be open."""

    question: Question
    room: Room
    peer: str = ""


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    """Prefill: the room is in the replicated table. `peer` is the decode group, None if there is no hand-off."""

    room: Room
    peer: str | None
    prompt_tokens: int


class Uncompiled(msgspec.Struct, frozen=True, array_like=True, tag="uncompiled"):
    """The room waits until rank 0 has compiled its grammar; the last rank will need it, too."""

    room: Room
    grammar: str


class Granted(msgspec.Struct, frozen=True, array_like=True, tag="granted"):
    """Decode: the prealloc vote passed; tell the prefill ranks where the pages are. Pages before are here already."""

    room: Room
    peer: str
    prompt_tokens: int
    first_page: int  # logical index in the prompt of pages[0]
    pages: tuple[PageId, ...]


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="returned"):
    """Decode: the prealloc vote failed; give the reservation back."""

    room: Room


class Emitted(msgspec.Struct, frozen=True, array_like=True, tag="emitted", gc=False):
    """A token for the client: `index` counts generated tokens from 0."""

    room: Room
    index: int
    token: int
    cached: int = 0  # with the first one: tokens of the prompt that were in prefill's cache


class HandedOff(msgspec.Struct, frozen=True, array_like=True, tag="handed"):
    """Prefill: token 0 is known; the decode group goes on from here."""

    room: Room
    peer: str
    token: int
    cached: int = 0  # tokens of the prompt that were in the cache


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The group's last word about a room to the router."""

    room: Room
    reason: Reason


class Retracted(msgspec.Struct, frozen=True, array_like=True, tag="retracted"):
    """Decode: the retract vote passed; copy `pages` to `host_pages` and say so."""

    room: Room
    pages: tuple[PageId, ...]
    host_pages: tuple[PageId, ...]


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag="resumed"):
    """Decode: the resume vote passed; copy `host_pages` back to `pages` before any later plan runs."""

    room: Room
    host_pages: tuple[PageId, ...]
    pages: tuple[PageId, ...]


class Evicted(msgspec.Struct, frozen=True, array_like=True, tag="evicted"):
    """Decode: the room lost its pages. The group's last word about it: the router computes it anew."""

    room: Room


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """Prefill: post nothing more for this room; say quiet when what is posted has drained."""

    room: Room


class ToldPeer(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The peer group must end this room too."""

    room: Room
    peer: str
    reason: Reason


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="settled"):
    """Prefill: nobody here can touch the decode group's pages of this room any more."""

    room: Room
    peer: str


class CutOff(msgspec.Struct, frozen=True, array_like=True, tag="cutoff"):
    """Cut the peer group off: afterwards nothing of it can land in our pages, and no write of ours reads from them."""

    peer: str


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten"):
    """The room left the replicated table: drop its session, its facts, and anything late about it."""

    room: Room


RoomNote = (
    Opened
    | Uncompiled
    | Granted
    | Returned
    | Emitted
    | HandedOff
    | Ended
    | Retracted
    | Resumed
    | Evicted
    | Stopped
    | ToldPeer
    | Settled
    | Forgotten
)
Note = RoomNote | CutOff
"""What happened to a room, or what is to be done about a peer."""


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The result of one step. `digest` covers the frame, the rows with their page numbers and the queue lengths."""

    tick: Tick
    slot: Slot
    rows: tuple[Row, ...]
    asks: tuple[Ask, ...]
    notes: tuple[Note, ...]
    digest: int

    @property
    def tokens(self) -> int:
        """Rows of the hidden-state tensor."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def samples(self) -> bool:
        """Whether any row yields a token."""
        return any(row.samples for row in self.rows)
