"""Talks to the ranks of other groups: proves who they are before anything else, then carries the control messages.

| decode rank | prefill rank |
| --- | --- |
| Hello, every second until answered -> | |
| | compares fingerprints and page layouts, else <- Refused |
| | transport.connect, off the thread, with a deadline, else <- Refused |
| | opens, <- Hello |
| opens; Hello every 5 s from now on -> | <- Hello again, if the session is still the same |

Prefill ranks answer (AnsweringLink, one ROUTER), decode ranks call (CallingLink, one DEALER per prefill rank). A rank's
identity on the socket holds its group, rank and incarnation, so that words of a dead incarnation are never taken for
those of its successor. All methods of a link are for one thread.
"""

from collections.abc import Callable, Iterator, Sequence

import zmq

from kvtransfer.answering import AnsweringLink
from kvtransfer.calling import CallingLink
from kvtransfer.handshake import Key, Said
from tandem.core.config import RoleName
from tandem.core.events import Event
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.core.messages import Hello
from tandem.ports import Transport
from tandem.runtime.links import Sockets


class PeerLink:
    """Either side, as the driver sees it. All methods but `hello` are for one thread.

    `address` goes into Member.peers. `counts` has messages that were `malformed`, from a `stranger` or a peer that is
    not open, from a `stale` incarnation, or `unsent`, and handshakes `refused`.
    """

    def __init__(
        self,
        hello: Hello,
        sockets: "Sockets[zmq.Socket[bytes]]",
        transport: Transport,
        role: RoleName,
        where: str,
        wake: Callable[[], None],
        timer_scale: float = 1.0,
    ) -> None:
        """`where` as in Sockets.bind; `wake` ends the poller's sleep, from any thread."""
        self._side: AnsweringLink | CallingLink
        if role is RoleName.PREFILL:
            self._side = AnsweringLink(sockets, hello, transport, wake, where, timer_scale)
        else:
            self._side = CallingLink(sockets, hello, timer_scale)
        self.address = self._side.address
        self.counts = self._side.counts

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """The open incarnation of a peer, None if there is none. From any thread."""
        return self._side.hello(group, rank)

    def on_members(self, members: Sequence[Member]) -> None:
        """What the registry holds now: whom to call, and whom to forget because they are missing for MISSING_S."""
        self._side.on_members(members)

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
        """Whom this rank cannot be paired with, and why. Decode ranks only: on a prefill rank it is in the log."""
        return self._side.refusals()

    def tick(self, now_s: float) -> None:
        """Say Hello again where that is due. Call it every second or so with monotonic seconds."""
        self._side.tick(now_s)

    @property
    def greeting(self) -> bool:
        """Whether somebody could not be greeted yet."""
        return self._side.greeting

    def close(self) -> None:
        """Close the sockets."""
        self._side.close()
