"""One incarnation of a rank: from fresh sockets, through one epoch of its group, to the fence that ends it.

Nothing in here outlives it. The process goes on, keeps its weights, and makes the next one.
"""

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, TypeVar

import msgspec

from consensus.link import NOWHERE
from consensus.pulse import Pulse
from tandem.core.config import RoleName
from tandem.core.ends import EndKind
from tandem.core.errors import ConfigError
from tandem.core.events import Combined
from tandem.core.ids import RankId, Room, Tick
from tandem.core.members import Member
from tandem.core.messages import EpochEnded, Fact, Formed
from tandem.runtime import drills
from tandem.runtime.drive import Drive, Thrown
from tandem.runtime.endings import END_S, EpochOver, Overdue, Stopped, Unusable
from tandem.runtime.endpoints import Endpoints, open_endpoints
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.rendezvous import Rendezvous
from tandem.runtime.resources import Past, Process
from tandem.runtime.serving import Place, Serving
from tandem.runtime.state import NewMembers, Question

LEAVE_S = 2.0
"""For what is under way when the process ends: nobody uses its memory afterwards."""

T = TypeVar("T")


class Incarnation:
    """Built up in `run`, and undone in reverse. Also the store link's listener."""

    def __init__(
        self, process: Process, past: Past, show: Callable[[Member], None], members: Callable[[], list[Member]]
    ) -> None:
        """`show` publishes our entry in the registry, `members` is its picture of all others."""
        self.past = past
        self.formed: Formed | None = None
        self.waiting_for = "the other ranks of its ring"
        self._process = process
        self._show = show
        self._members = members
        self._inbox: ThreadInbox[Thrown] = ThreadInbox()
        self._pulse = Pulse(time.monotonic())
        self._undo = contextlib.ExitStack()
        self._overdue = Overdue(process.name, END_S * process.options.timer_scale)
        self._last = False  # the process ends with it
        self._serving: Serving | None = None
        self._thrown: Exception | None = None
        self._told = 0  # how often this process was told to end
        self._leaver: RankId | None = None  # another rank that was told to end

    def run(self) -> NoReturn:
        """Until it is over. Raises why, when all of it is closed: Stopped, Unusable and ConfigError end the process."""
        with self._undo:
            self._undo.callback(self._overdue.done)
            self._undo.callback(self._inbox.close)
            endpoints = open_endpoints(self._process, self._inbox, self._undo)
            self._undo.callback(self._fence, endpoints)
            with contextlib.ExitStack() as first:
                first.push(self._begin_end)
                self._show(msgspec.structs.replace(endpoints.member, last_end=self.past.last_end.cause))
                self._rendezvous = Rendezvous(self._process, endpoints, self.past, self, self._pulse, self._undo)
                formed, following, store = self._rendezvous.wait(self._members, lambda: self.formed, self._check)
                place = Place(self._inbox, self._pulse, self.throw, self._patience_s, self._undo)
                self._serving = Serving(self._process, endpoints, formed, following, store, place)
                self.meet(self._members())
                self._show(msgspec.structs.replace(self._serving.member, last_end=self.past.last_end.cause))
                self._serving.drive.run(self._check)

    # what other threads, and signals, have to say

    @property
    def serving(self) -> bool:
        """Whether the tick loop answers questions."""
        return self._serving is not None

    def ask(self, look: Callable[[Drive], T], timeout_s: float) -> T | None:
        """What `look` finds in the tick loop; None if it does not answer in time, or is over. From any thread."""
        question = Question(look)
        self._inbox.put(question)
        return question.wait(timeout_s)

    def meet(self, members: list[Member]) -> None:
        """The registry has been read: whom to move KV to or from, and who of the ring has a successor. From any
        thread.
        """
        if not self.serving:
            return
        if (rank := self._rendezvous.successor(members)) is not None:
            self.throw(EpochOver(f"rank {rank} came back as another process", EndKind.REPLACED))
        elif self._process.options.group.role is not RoleName.COLOCATED:
            self._inbox.put(NewMembers(members))

    def leave(self, times: int) -> None:
        """This process was told to end so often; once means in order. Safe in a signal's handler."""
        self._told = max(self._told, times)
        self._inbox.wake()

    def throw(self, error: Exception) -> None:
        """End with this, unless something else has ended it. From any thread."""
        self._thrown = self._thrown or error
        if self.serving:
            self._overdue.begin()  # the tick loop may be what hangs
        self._inbox.wake()

    def _check(self, missing: str = "") -> None:
        """In each round of forming and of serving: raises what has ended this incarnation."""
        if missing:
            self.waiting_for = f"the other ranks of its ring: {missing}"
            if self.past.known:
                drills.forming(self._process.options, missing)
        if self._serving is None:
            self._pulse.move(Tick(-1), "", time.monotonic())
        if self._thrown is not None:
            raise self._thrown
        if self._told > 1 or (self._told and self._serving is None):
            raise Stopped
        if self._serving is not None and self._told:
            self._serving.drive.leave(self._process.options.rank)
        if self._serving is not None and self._leaver is not None:
            self._serving.drive.leave(self._leaver)

    # the store link's listener, called on its thread

    def on_formed(self, formed: Formed) -> None:
        """The ring has its epoch."""
        self.formed = formed

    def on_combined(self, room: Room, fact: Fact | None) -> None:
        """Rank 0: the group's fact about a room changed."""
        self._inbox.put(Combined(room, fact))

    def on_over(self, word: EpochEnded) -> None:
        """The group cannot go on, or shall not."""
        self.throw(EpochOver(word.end.cause, word.end.kind))

    def on_refused(self, cause: str) -> None:
        """Nothing helps but to start this process otherwise."""
        self.throw(ConfigError(cause))

    def on_leaving(self, rank: RankId) -> None:
        """Rank 0: the whole group finishes what it has."""
        self._leaver = rank
        self._inbox.wake()

    # its end

    def _begin_end(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Before anything is undone: whoever waits for us hears of it."""
        self._overdue.begin()
        self._last = bool(self._told) or isinstance(error, Stopped | Unusable | ConfigError)
        serving, self._serving = self._serving, None
        if self.formed is not None:
            self.past = Past(self.formed.epoch, self.past.epochs, self.past.last_end)
        if serving is not None and error is not None:
            end = serving.part(error)
            self._process.tally.end(end.kind, error)
            self.past = Past(self.past.known, self.past.epochs + 1, end)
            self._show(msgspec.structs.replace(serving.member, epoch=NOWHERE, last_end=end.cause))

    def _patience_s(self) -> float:
        return LEAVE_S if self._last else END_S * self._process.options.timer_scale

    def _fence(self, endpoints: Endpoints) -> None:
        """Nothing that was meant for this incarnation lands from now on. The end of the process does that as well."""
        if self._last:
            return
        try:
            endpoints.edges.close()
        except OSError as error:
            raise Unusable(f"{self._process.name} cannot be fenced: {error}") from error
