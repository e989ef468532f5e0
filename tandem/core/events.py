"""What a rank observes: local, so it may differ between ranks, and so it can never reach the scheduler."""

import enum

import msgspec

from tandem.core.ids import LayerId, RankId, Room, Tick
from tandem.core.inputs import Control, FirstToken, Knobs, Submit, TokenLogprobs, Tokens
from tandem.core.messages import (
    BallotBack,
    Baton,
    Cancel,
    Cancelled,
    Commit,
    Fact,
    Grant,
    Hello,
    Hidden,
    Quiet,
    Return,
)


class _Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Tagged, so that a recorded run can be replayed."""


class Started(_Event, frozen=True):
    """This rank's engine has begun to compute a tick."""

    tick: Tick


class LayerRan(_Event, frozen=True):
    """Producer event: the KV of one layer of one tick is in the page pool."""

    tick: Tick
    layer: LayerId


class Ran(_Event, frozen=True):
    """This rank's engine has finished a tick. `tokens` on the last rank: one tuple per sampled row, in plan order."""

    tick: Tick
    tokens: Tokens
    logprobs: TokenLogprobs = ()


class Written(enum.Enum):
    """How a posted write ended. Unsettled: it may still land, so neither side may reuse its pages."""

    OK = "ok"
    FAILED_SETTLED = "failed_settled"
    FAILED_UNSETTLED = "failed_unsettled"


class Moved(_Event, frozen=True):
    """A posted write ended."""

    ticket: int
    result: Written
    digests: tuple[int, ...] = ()  # CRC-32 of the blocks that were sampled, in their order


class Verified(_Event, frozen=True):
    """The blocks of a commit have been compared with what was sent."""

    commit: Commit
    intact: bool


class BackedUp(_Event, frozen=True):
    """The copy of a room's pages to host memory is done on this rank."""

    room: Room


class PeerOpened(_Event, frozen=True):
    """The handshake with one rank of another group is done: fingerprints match, the transport can reach it."""

    hello: Hello


class PeerLost(_Event, frozen=True):
    """A rank of another group is gone, or came back as another incarnation."""

    group: str
    rank: RankId


class Fenced(_Event, frozen=True):
    """Nothing that came from this group before can land here any more, and no write to it still reads our pages."""

    group: str


class Compiled(_Event, frozen=True):
    """A grammar has been compiled on this rank, or cannot be, within the limits. Only rank 0 concludes anything."""

    room: Room
    ok: bool


class Combined(_Event, frozen=True):
    """Rank 0: the group's combined fact about a room changed; None when every rank has deleted it."""

    room: Room
    fact: Fact | None


class Woke(_Event, frozen=True):
    """The time that `Rank.wake_ms` named has come."""


Event = (
    Submit
    | Cancel
    | Control
    | Knobs
    | FirstToken
    | Quiet
    | Cancelled
    | Grant
    | Commit
    | Baton
    | Hidden
    | Return
    | BallotBack
    | Started
    | LayerRan
    | Ran
    | Moved
    | Verified
    | Fenced
    | BackedUp
    | PeerOpened
    | PeerLost
    | Compiled
    | Combined
    | Woke
)
