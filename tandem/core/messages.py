"""Every message on a wire between processes: msgspec structs, never pickle. `inputs` holds those a frame carries.

| from -> to                              | messages                                              |
| router -> rank 0 of a group             | Submit, Cancel, Control, Knobs, Watch                 |
| rank 0 -> router                        | lists of Token, Portion, Done, Evicted, Load, Cached  |
| prefill rank 0 -> decode rank 0         | FirstToken, Quiet, Cancelled, all in Numbered         |
| decode rank 0 -> prefill rank 0         | Cancelled, in Numbered                                |
| decode rank -> prefill rank             | Hello; Grant in Numbered; Heard                       |
| prefill rank -> decode rank             | Hello, Refused; Commit in Numbered; Heard             |
| rank -> rank 0                          | Join, Facts, Heartbeat, Leaving, EpochEnded           |
| rank 0 -> rank                          | Formed, Ack, Heartbeat, EpochEnded                    |
| ring                                    | Baton, Hidden, Return, BallotBack                     |
"""

import enum
from typing import Generic, TypeVar

import msgspec

from tandem.core.config import Limits
from tandem.core.ends import NO_END, End
from tandem.core.ids import Epoch, LayerId, PageId, RankId, Room, Tick
from tandem.core.inputs import Control, FirstToken, Frame, Knobs, Submit, TokenLogprobs, Tokens
from tandem.core.requests import Logprobs, Reason

PROTOCOL = 7
"""Raised whenever a message changes its meaning; part of the fingerprint."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A tagged array on the wire: the class name, then the fields in order."""


# router <-> rank 0


class Cancel(_Message, frozen=True):
    """The router ends a room: the client left, a stop string was found, the deadline passed."""

    room: Room
    reason: Reason


WATCH_S = 1.0
"""How often a router watches a group."""
SILENT_S = 5.0
"""After so long without a word, router and group give each other up; multiplied by the timer scale."""


class Watch(_Message, frozen=True):
    """A router wants to hear a group's Load; sent once a second, so it is also the router's sign of life.

    `cached`: it wants to hear what the group's prefix cache holds, and has understood all up to this number; 0: nothing
    yet, and the group begins with all that it holds.
    """

    cached: int | None = None


class Token(_Message, frozen=True):
    """One generated token. Indices start at 0; the router drops those it has."""

    room: Room
    index: int
    token: int
    logprobs: Logprobs | None = None
    cached: int = 0  # with index 0: tokens of the prompt that were in the cache


PORTION = 16
"""Tokens in a Portion: a lost group costs no more of them, and so many exonerate a request that was on two."""


class Portion(_Message, frozen=True):
    """Tokens of a room that is told whole, from the position `first` on."""

    room: Room
    first: int
    tokens: tuple[int, ...]


class Done(_Message, frozen=True):
    """This group's last word about a room. `cause`: why its epoch has ended, of a group that was lost; for people."""

    room: Room
    reason: Reason
    cause: str = ""


class Evicted(_Message, frozen=True):
    """This group's last word about a room whose pages it had to give up: submit it anew, with the tokens it has."""

    room: Room


class Load(_Message, frozen=True):
    """How full a group is: the answer to each Watch, so it is also the group's sign of life."""

    group: str
    waiting: int
    running: int
    free_pages: int
    draining: bool = False  # it refuses new requests
    paused: bool = False  # it starts no forward: what is asked for waits


class Cached(_Message, frozen=True):
    """What became known to a group's prefix cache, and what left it, as page hashes: see `core.journal`.

    `number` is that of the newest change in here, `after` that of the newest before; with `after` 0 it begins anew.
    """

    after: int
    number: int
    stored: tuple[int, ...]
    removed: tuple[int, ...]


# group <-> group


class Region(_Message, frozen=True):
    """One rank's registered page memory: block (layer, page) lies at
    `base + ((layer - first_layer) * num_pages + page) * block_bytes`.
    """

    base: int
    first_layer: LayerId
    last_layer: LayerId  # exclusive
    num_pages: int
    block_bytes: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return (self.last_layer - self.first_layer) * self.num_pages * self.block_bytes

    def address(self, layer: LayerId, page: PageId) -> int:
        """Address of one page of one layer in the owner's address space."""
        return self.base + ((layer - self.first_layer) * self.num_pages + page) * self.block_bytes


class Hello(_Message, frozen=True):
    """Who I am, which incarnation, what I compute and where my pages are. Proves identity before any write.

    The endpoint is that of the one transport which serves the receiver's group. An incarnation has a `fence` after each
    fence, so both together name an instance: nothing that was meant for an earlier one can land.
    """

    group: str
    rank: RankId
    size: int  # ranks in my group
    incarnation: int  # random per process start
    fingerprint: str
    transport: str
    endpoint: str
    region: Region
    probe: int = 0  # decode: the address for the known answer; prefill: the address that it has written to
    fence: int = 0  # how often what the receiver's group may reach here has been fenced
    engine: str = ""  # what computes here, for people: the fingerprint has what must be equal
    session: int = 0  # decode: of this attempt, ascending; prefill: of the one that it answers
    epoch: Epoch = Epoch(0)  # of my ring: who calls for a rank that has called in a later one is its past

    @property
    def instance(self) -> tuple[int, int]:
        """What was written to an earlier one of this rank does not land any more."""
        return self.incarnation, self.fence


class Refused(_Message, frozen=True):
    """The handshake failed: `detail` names both values that do not fit."""

    group: str
    rank: RankId
    detail: str


class Grant(_Message, frozen=True):
    """Where a decode rank wants the prompt's KV: page `first_page + i` of the prompt goes to `pages[i]`."""

    group: str
    room: Room
    rank: RankId
    first_page: int  # those before it are in the decode group's cache
    pages: tuple[PageId, ...]


class Commit(_Message, frozen=True):
    """All blocks of one layer for tokens [first, last) of the prompt have been written, rc = 0."""

    room: Room
    layer: LayerId
    first: int
    last: int
    checks: tuple[tuple[int, int], ...] = ()  # (page of the prompt, CRC-32 of its block) of a sample of the blocks


class Quiet(_Message, frozen=True):
    """Nothing on the prefill side can touch this room's decode pages any more."""

    room: Room


class Cancelled(_Message, frozen=True):
    """The group `group` ended this room; the receiver ends it too."""

    group: str
    room: Room
    reason: Reason


T = TypeVar("T")


class Numbered(_Message, Generic[T], frozen=True):
    """What one peer says to another after the handshake, with its place in the session: 1, 2, 3..."""

    session: int
    seq: int
    message: T


FORGOTTEN = -1


class Heard(_Message, frozen=True):
    """All up to `seq` has been heard; FORGOTTEN when the session is not known here, or not any more."""

    session: int
    seq: int


# rank <-> rank 0 of its group


class Progress(enum.IntEnum):
    """The field's KVPoll, without Failed: failure is a bit of its own, so that progress only ever grows."""

    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


class Fact(msgspec.Struct, frozen=True, array_like=True):
    """What one rank knows of one room. Every field only ever grows; `consensus.facts` says how ranks combine."""

    progress: Progress = Progress.BOOTSTRAPPING
    failed: bool = False
    quiet: bool = False
    backups: int = 0  # copies to host memory that are done
    fenced: bool = False  # the rank has cut the peer group off; unlike quiet, it says nothing about the peer's pages
    corrupt: bool = False  # a block that landed is not the one that was sent


class Join(_Message, frozen=True):
    """A rank is ready to form the ring: its start time (ms since 1970), what it was told and what it can hold."""

    rank: RankId
    incarnation: int
    boot_ms: int
    limits: Limits
    fingerprint: str
    known: Epoch = Epoch(0)  # the latest epoch that this process was a member of
    last_end: End = NO_END  # of that one
    engine: str = ""  # what computes there, for people


class Formed(_Message, frozen=True):
    """All ranks have joined: the epoch, the page count that every rank can hold, and who they are, by rank."""

    epoch: Epoch
    num_pages: int
    incarnations: tuple[int, ...]


class Facts(_Message, frozen=True):
    """Coalesced updates of one rank's map, oldest first. None deletes the key. Sequence numbers start at 1."""

    epoch: Epoch
    rank: RankId
    seq: int
    entries: tuple[tuple[Room, Fact | None], ...]
    snapshot: bool = False  # the entries are the whole map


class Ack(_Message, frozen=True):
    """Rank 0 has applied every update up to `seq`."""

    epoch: Epoch
    seq: int


class Heartbeat(_Message, frozen=True):
    """I am alive, and so far I have come; rank 0 answers in kind."""

    epoch: Epoch
    rank: RankId
    tick: Tick = Tick(-1)  # the last that was stepped
    awaiting: str = ""  # what the rank cannot go on without, such as hidden(7) or ran(7)
    since_ms: int = 0  # for how long


class Leaving(_Message, frozen=True):
    """This rank was told to end: its group should finish what it has, and take nothing new."""

    epoch: Epoch
    rank: RankId


class EpochEnded(_Message, frozen=True):
    """The group cannot go on. Whoever finds out tells rank 0, rank 0 tells everybody: one cause in every log."""

    epoch: Epoch
    rank: RankId  # who has found out
    end: End


# the ring


class Baton(_Message, frozen=True):
    """Exactly one per tick, from rank r to r + 1. `ballot` folds the votes on what step(tick - 1) asked."""

    epoch: Epoch
    frame: Frame
    ballot: int | None


class Hidden(_Message, frozen=True):
    """Header of the hidden states of one tick; exactly when its plan has rows."""

    epoch: Epoch
    tick: Tick
    rows: int
    digest: int


class Return(_Message, frozen=True):
    """Last rank to rank 0, one per tick with rows, in tick order. One token tuple per sampled row, in plan order.

    `logprobs` end at rank 0: no frame has them.
    """

    epoch: Epoch
    tick: Tick
    digest: int
    tokens: Tokens
    logprobs: TokenLogprobs = ()


class BallotBack(_Message, frozen=True):
    """Last rank to rank 0, when baton `tick` carried an open vote."""

    epoch: Epoch
    tick: Tick
    yes: int


ToGroup = Submit | Cancel | Control | Knobs | Watch
ToRouter = Token | Portion | Done | Evicted | Load | Cached
ToRouters = list[ToRouter]  # all that a round has for one router
SaidByDecode = Grant | Cancelled
SaidByPrefill = Commit | FirstToken | Quiet | Cancelled
ToPrefill = Hello | Numbered[SaidByDecode] | Heard
ToDecode = Hello | Refused | Numbered[SaidByPrefill] | Heard
ToLeader = Join | Facts | Heartbeat | Leaving | EpochEnded
FromLeader = Formed | Ack | Heartbeat | EpochEnded
OnRing = Baton | Return | BallotBack
