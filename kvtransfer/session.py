"""Both ends of one room's transfer on one rank, as state tables. Illegal inputs raise."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtransfer.coverage import Coverage
from tandem.core.ids import LayerId, PageId, RankId, Room, Tick
from tandem.core.messages import Grant
from tandem.core.tables import follow


class SendState(enum.Enum):
    """Prefill rank: from the first grant to quiet."""

    BOOTSTRAPPING = "bootstrapping"
    READY = "ready"  # every grant this rank needs is in
    SENDING = "sending"
    STOPPED = "stopped"  # posts nothing more, waits for what is posted
    QUIET = "quiet"


class SendInput(enum.Enum):
    """What can happen to a sending session."""

    GRANTED = "granted"
    LAUNCHED = "launched"
    STOPPED = "stopped"
    DRAINED = "drained"


SEND_NEXT: dict[tuple[SendState, SendInput], SendState] = {
    (SendState.BOOTSTRAPPING, SendInput.GRANTED): SendState.READY,
    (SendState.READY, SendInput.LAUNCHED): SendState.SENDING,
    (SendState.READY, SendInput.STOPPED): SendState.STOPPED,
    (SendState.SENDING, SendInput.LAUNCHED): SendState.SENDING,
    (SendState.SENDING, SendInput.STOPPED): SendState.STOPPED,
    (SendState.SENDING, SendInput.DRAINED): SendState.QUIET,
    (SendState.STOPPED, SendInput.DRAINED): SendState.QUIET,
    (SendState.QUIET, SendInput.STOPPED): SendState.QUIET,
}


Peer = tuple[str, RankId]
"""A rank of another group."""
Instance = tuple[int, int]
"""What it is proved by that writes to an earlier one cannot land any more: (incarnation, fences)."""


@dataclass(slots=True)
class SendSession:
    """What one prefill rank knows of one room it sends."""

    room: Room
    peer: str | None = None  # None until the room is in the replicated table, or when nobody takes it over
    opened: bool = False
    pages: int = 0  # of the prompt, once it is open
    grants: dict[Peer, Grant] = field(default_factory=dict)  # by who sent them, while it is there
    route: dict[LayerId, Grant] = field(default_factory=dict)  # of the owner of each of our layers, once ready
    state: SendState = SendState.BOOTSTRAPPING
    unfinished: dict[Tick, None] = field(default_factory=dict)  # launched here, not computed here yet
    launched: int = 0  # pages of the prompt that are complete once what has been launched has run
    posted: int = 0  # writes whose end is not known
    whole: bool = False  # the last chunk has been launched
    failed: bool = False
    unsettled: dict[Peer, Instance] = field(default_factory=dict)  # a write to them has ended, and may still land
    fenced: bool = False  # we have cut the peer off: what it has of ours is not for us to say

    def move(self, happened: SendInput) -> None:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(SEND_NEXT, self.state, happened, f"sending {self.room}")

    @property
    def drained(self) -> bool:
        """Nothing is under way and nothing will be posted any more."""
        ending = self.state is SendState.STOPPED or (self.state is SendState.SENDING and self.whole)
        return ending and not self.posted and not self.unsettled and not self.unfinished


class ReceiveState(enum.Enum):
    """Decode rank: from the vote until the room is forgotten."""

    RESERVED = "reserved"  # voted yes
    OPEN = "open"  # grants are out, commits come in
    COMPLETE = "complete"
    COPYING = "copying"  # to host memory
    SAVED = "saved"  # host memory has all of it


class ReceiveInput(enum.Enum):
    """What can happen to a receiving session. Its end is that it is dropped."""

    GRANTED = "granted"
    COVERED = "covered"
    RETRACTED = "retracted"
    BACKED_UP = "backed up"
    RESUMED = "resumed"


RECEIVE_NEXT: dict[tuple[ReceiveState, ReceiveInput], ReceiveState] = {
    (ReceiveState.RESERVED, ReceiveInput.GRANTED): ReceiveState.OPEN,
    (ReceiveState.OPEN, ReceiveInput.COVERED): ReceiveState.COMPLETE,
    (ReceiveState.COMPLETE, ReceiveInput.RETRACTED): ReceiveState.COPYING,
    (ReceiveState.COPYING, ReceiveInput.BACKED_UP): ReceiveState.SAVED,
    (ReceiveState.SAVED, ReceiveInput.RESUMED): ReceiveState.COMPLETE,
}


@dataclass(slots=True)
class ReceiveSession:
    """What one decode rank knows of one room it receives."""

    room: Room
    peer: str
    state: ReceiveState = ReceiveState.RESERVED
    coverage: Coverage | None = None
    first_page: int = 0  # of the prompt, of those that were granted
    pages: tuple[PageId, ...] = ()  # granted
    told: bool = False  # rank 0: the first token has come
    backups: int = 0  # copies to host memory that are done

    def placed(self, checks: Sequence[tuple[int, int]]) -> tuple[tuple[PageId, int], ...] | None:
        """The page of each checked block, with its digest; None if one of them was not granted."""
        places = [index - self.first_page for index, _ in checks]
        if not all(0 <= place < len(self.pages) for place in places):
            return None
        return tuple((self.pages[place], digest) for place, (_, digest) in zip(places, checks, strict=True))

    def move(self, happened: ReceiveInput) -> None:
        """Take one input. Raises IllegalTransition when the table has no such row."""
        self.state = follow(RECEIVE_NEXT, self.state, happened, f"receiving {self.room}")
