"""A prefill rank's side of the peer link: one ROUTER that decode ranks call."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import zmq

from kvtransfer.handshake import CONNECT_DEADLINE_S, MAX_TAKEN, MISSING_S, Key, Said, identity, mismatch
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.core.messages import Cancelled, Grant, Hello, Refused, ToPrefill
from tandem.ports import Transport
from tandem.runtime.links import RouterInbox, Sockets, encode, post

MAX_PEERS = 1024
MAX_RETIRED = 1024
"""Dead incarnations remembered, so that a late Hello does not undo its successor's."""

log = logging.getLogger("tandem.kvtransfer")


@dataclass(slots=True)
class _Caller:
    """A decode rank, on a prefill rank."""

    hello: Hello
    open: bool = False  # until then transport.connect is running
    missing_s: float | None = None


class AnsweringLink:
    """A prefill rank's side."""

    def __init__(
        self,
        sockets: "Sockets[zmq.Socket[bytes]]",
        hello: Hello,
        transport: Transport,
        wake: Callable[[], None],
        where: str,
        timer_scale: float = 1.0,
    ) -> None:
        socket, self.address = sockets.bind(zmq.ROUTER, where, f"peers-{hello.group}-{hello.rank}")
        self.counts: Counter[str] = Counter()
        self._inbox: RouterInbox[ToPrefill] = RouterInbox(socket, ToPrefill)
        self._me = hello
        self._transport = transport
        self._wake = wake
        self._scale = timer_scale
        self._peers: dict[Key, _Caller] = {}
        self._keys: dict[bytes, Key] = {}
        self._now_s = 0.0
        self._retired: deque[bytes] = deque(maxlen=MAX_RETIRED)
        self._connected: SimpleQueue[tuple[Hello, str | None]] = SimpleQueue()
        self._lost: deque[PeerLost] = deque()

    def hello(self, group: str, rank: RankId) -> Hello | None:
        """See PeerLink."""
        peer = self._peers.get((group, rank))
        return peer.hello if peer is not None and peer.open else None

    def on_members(self, members: Sequence[Member]) -> None:
        """Forget who has been missing for a while."""
        present = {(member.group.name, member.rank) for member in members}
        for key, peer in list(self._peers.items()):
            if key in present:
                peer.missing_s = None
            elif peer.missing_s is None:
                peer.missing_s = self._now_s
            elif self._now_s - peer.missing_s >= MISSING_S * self._scale:
                self._lost.extend(self._forget(key))

    def send(self, group: str, rank: RankId, message: Said) -> None:
        """To an open peer, else dropped and counted."""
        peer = self._peers.get((group, rank))
        sent = peer is not None and peer.open and self._post(identity(peer.hello), message)
        self.counts["unsent"] += not sent

    def receive(self) -> Iterator[Event]:
        """See PeerLink."""
        while self._lost:
            yield self._lost.popleft()
        yield from self._take_connected()
        for _ in range(MAX_TAKEN):
            received = self._inbox.receive()
            self.counts["malformed"] = self._inbox.malformed
            if received is None:
                return
            sender, message = received
            if isinstance(message, Hello):
                yield from self._on_hello(sender, message)
            elif self._may_say(sender, message):
                yield message
            else:
                self.counts["stranger"] += 1

    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """See PeerLink."""
        return [self._inbox.socket]

    def refusals(self) -> dict[Key, str]:
        """See PeerLink."""
        return {}

    @property
    def greeting(self) -> bool:
        """See PeerLink: this side is greeted."""
        return False

    def tick(self, now_s: float) -> None:
        """Nothing to resend on this side: the time is noted."""
        self._now_s = now_s

    def close(self) -> None:
        """Close the socket. A connect that is running ends by its deadline, unheard."""
        self._wake = _nothing
        self._inbox.socket.close(0)

    def _on_hello(self, sender: bytes, hello: Hello) -> Iterator[Event]:
        if sender != identity(hello):
            self.counts["stranger"] += 1
            return
        if sender in self._retired:  # overtaken by its successor's Hello
            self.counts["stale"] += 1
            return
        key = hello.group, hello.rank
        known = self._peers.get(key)
        if known is not None and known.hello.incarnation == hello.incarnation:
            if known.open:
                self._post(sender, self._me)  # our answer was lost, or this is a refresh
            return
        if known is not None:
            self._retired.append(identity(known.hello))
            yield from self._forget(key)
        full = len(self._peers) >= MAX_PEERS
        if (detail := f"more than {MAX_PEERS} ranks call" if full else mismatch(self._me, hello)) is not None:
            self._refuse(sender, detail)
            return
        self._peers[key] = _Caller(hello)
        self._keys[sender] = key
        threading.Thread(target=self._connect, args=(hello,), name=f"connect {key}", daemon=True).start()

    def _connect(self, hello: Hello) -> None:
        """Runs in a thread of its own: a silent peer holds up nobody else."""
        detail: str | None = "its transport failed"  # what is true if the transport raises anything else
        try:
            self._transport.connect(hello, CONNECT_DEADLINE_S * self._scale)
            detail = None
        except ConnectionError as error:
            detail = f"{self._me.group}/{self._me.rank} cannot write to {hello.group}/{hello.rank}: {error}"
        finally:
            self._connected.put((hello, detail))
            self._wake()

    def _take_connected(self) -> Iterator[Event]:
        while True:
            try:
                hello, detail = self._connected.get_nowait()
            except Empty:
                return
            key = hello.group, hello.rank
            peer = self._peers.get(key)
            if peer is None or peer.hello.incarnation != hello.incarnation:
                continue  # forgotten or replaced meanwhile
            if detail is not None:
                yield from self._forget(key)
                self._refuse(identity(hello), detail)
                continue
            peer.open = True
            self._post(identity(hello), self._me)
            yield PeerOpened(hello)

    def _may_say(self, sender: bytes, message: Grant | Cancelled) -> bool:
        key = self._keys.get(sender)
        if key is None or not self._peers[key].open:
            return False
        return message.group == key[0] and (isinstance(message, Cancelled) or message.rank == key[1])

    def _forget(self, key: Key) -> Iterator[PeerLost]:
        peer = self._peers.pop(key)
        del self._keys[identity(peer.hello)]
        if peer.open:
            yield PeerLost(*key)

    def _refuse(self, sender: bytes, detail: str) -> None:
        self.counts["refused"] += 1
        log.warning("refused a peer: %s", detail)
        self._post(sender, Refused(self._me.group, self._me.rank, detail))

    def _post(self, to: bytes, message: Hello | Refused | Said) -> bool:
        return post(self._inbox.socket, to, encode(message))


def _nothing() -> None:
    pass
