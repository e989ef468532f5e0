"""Talks to the ranks of other groups: proves who they are before anything else, then carries the control messages.

| decode rank | prefill rank |
| --- | --- |
| makes the transport that the prefill group will write to, off the thread | |
| Hello with its endpoint, every second until answered -> | |
| | compares fingerprints and page layouts, else <- Refused |
| | reaches the endpoint and writes the known answer, off the thread, else <- Refused |
| | opens, <- Hello |
| finds the known answer in its memory, else begins anew later | |
| opens; Heard at least every 5 s from now on -> | Heard with FORGOTTEN, if it does not know the session |

Both number what they say from then on (`reliable`): a session loses nothing, or it ends. When one has ended, the decode
rank begins the next. A decode rank that a prefill rank cannot write to is parted with and tried again ever later
(`breaker`).

Prefill ranks answer (AnsweringLink, one ROUTER), decode ranks call (CallingLink, one DEALER per prefill rank). A rank's
identity on the socket holds its group, rank and incarnation, so that words of a dead incarnation are never taken for
those of its successor. All methods of a link are for one thread.
"""

from collections.abc import Callable, Iterator, Sequence

import zmq

from kvtransfer.answering import AnsweringLink
from kvtransfer.calling import CallingLink
from kvtransfer.edges import Edges
from kvtransfer.fences import Fences
from kvtransfer.handshake import Key, Said
from kvtransfer.tail import Tail, TailBytes
from tandem.core.config import RoleName
from tandem.core.events import Event, Fenced, Written
from tandem.core.ids import Epoch, RankId
from tandem.core.members import Member
from tandem.core.messages import Hello
from tandem.runtime.links import Sockets


class PeerLink:
    """Either side, as the driver sees it. All methods but `hello` and `wrote` are for one thread.

    `address` goes into Member.peers. `counts` has messages that were `malformed`, from a `stranger` or a peer that is
    not open, from a `stale` session, or `unsent`, and handshakes `refused`.
    """

    def __init__(
        self,
        hello: Hello,
        sockets: "Sockets[zmq.Socket[bytes]]",
        edges: Edges,
        tail: TailBytes,
        role: RoleName,
        where: str,
        wake: Callable[[], None],
        fenced: Callable[[Fenced], None],
        timer_scale: float = 1.0,
    ) -> None:
        """`where` as in Sockets.bind; `tail` are the bytes behind `hello.region`. From any thread, `wake` ends the
        poller's sleep, and `fenced` puts the event into the queue that `Posting` puts its own into.
        """
        self._fences = Fences(edges, fenced, wake, timer_scale)
        self._side: AnsweringLink | CallingLink
        slots = Tail(hello.region, tail)
        if role is RoleName.PREFILL:
            self._side = AnsweringLink(sockets, hello, edges, slots, self._fences, wake, where, timer_scale)
        else:
            self._side = CallingLink(sockets, hello, edges, slots, self._fences, wake, timer_scale)
        self.address = self._side.address
        self.counts = self._side.counts

    def begin(self, epoch: Epoch) -> None:
        """The ring has formed: nobody has been called or answered before."""
        self._side.begin(epoch)

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """The open session of a peer, None if there is none. From any thread."""
        return self._side.hello(group, rank)

    def wrote(self, hello: Hello, result: Written) -> None:
        """A write to a peer has ended: its breaker counts. From any thread."""
        assert isinstance(self._side, AnsweringLink), "decode ranks write to nobody"
        self._side.wrote(hello, result)

    def on_members(self, members: Sequence[Member]) -> None:
        """What the registry holds now: whom to call, and whom to forget because they are missing for MISSING_S."""
        self._side.on_members(members)

    def fence(self, group: str) -> None:
        """Lose all ranks of a group, end its transport, and begin anew with it: PeerLost, Fenced, PeerOpened.

        What fails or hangs is logged and tried again: without a Fenced nothing is fenced.
        """
        self._side.fence(group)
        self._fences.ask(group)

    def fencing(self) -> list[str]:
        """Groups whose fence is not done."""
        return self._fences.groups()

    def send(self, group: str, rank: RankId, message: Said) -> None:
        """To an open peer; else the message is dropped and counted: its rooms have failed with the peer."""
        self._side.send(group, rank, message)

    def receive(self) -> Iterator[Event]:
        """Everything that came: messages of open peers, PeerOpened, PeerLost. Never blocks."""
        return self._side.receive()

    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """For the poller. On a decode rank the list changes in `on_members`, and only there."""
        return self._side.sockets()

    def refusals(self) -> dict[Key, str]:
        """Whom this rank cannot be paired with, and why; on a prefill rank, also for how long."""
        return self._side.refusals()

    @property
    def unheard(self) -> int:
        """Messages that peers may not have heard yet."""
        return self._side.unheard

    def tick(self, now_s: float) -> None:
        """Say Hello and what was not heard again where that is due. Call it every second or so, monotonic seconds."""
        self._side.tick(now_s)
        self._fences.tick(now_s)

    @property
    def greeting(self) -> bool:
        """Whether somebody could not be greeted yet."""
        return self._side.greeting

    def close(self) -> None:
        """Close the sockets."""
        self._fences.close()
        self._side.close()
