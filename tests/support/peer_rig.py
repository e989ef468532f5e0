"""Prefill and decode ranks that meet over real sockets in one process, with transports that copy memory."""

import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq

from kvtransfer.edges import Edges
from kvtransfer.peer_link import PeerLink
from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import ConfigError
from tandem.core.events import Event, PeerOpened, Written
from tandem.core.ids import LayerId, RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Hello, Region
from tandem.ports import TAIL_BYTES
from tandem.runtime.links import Sockets

DEADLINE_S = 10
ROOM = Room(RequestId(1), 0)
REGION = Region(0, LayerId(0), LayerId(2), 8, 64)


class ReachingTransport:
    """Writes by memcpy to everybody but the endpoints that are told off; those make it wait for the gate or fail."""

    kind = "copy"

    def __init__(self, endpoint: str = "here") -> None:
        self.endpoint = endpoint
        self.dead: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.connects = 0
        self.written = Written.OK  # what a write says
        self.spoils = False  # what it writes is not what it was told to
        self.may_close = threading.Event()
        self.may_close.set()
        self.closed = False

    def register(self, base: int, length: int) -> None: ...

    def connect(self, peer: Hello, deadline_s: float) -> None:
        self.connects += 1
        assert self.gate.wait(DEADLINE_S)
        if peer.endpoint in self.dead:
            raise ConnectionError(f"{peer.endpoint} was silent")

    def write(self, peer: Hello, blocks: Sequence[tuple[int, int, int]], deadline_s: float) -> Written:
        for source, destination, length in blocks:
            ctypes.memmove(destination, source, 0 if self.spoils else length)
        return self.written

    def close(self) -> None:
        if not self.may_close.wait(DEADLINE_S):
            raise TimeoutError("a call is stuck")
        self.closed = True


class Transports:
    """Makes a rank's: one for each group of peers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[ReachingTransport] = []
        self.broken = False

    def __call__(self) -> ReachingTransport:
        if self.broken:
            raise ConfigError("no transport today")
        self.made.append(ReachingTransport(f"{self.name}-{len(self.made)}"))
        return self.made[-1]


POOL = REGION.bytes + TAIL_BYTES


def hello(group: str, rank: int = 0, incarnation: int = 1) -> Hello:
    """Without what differs from session to session."""
    return Hello(group, RankId(rank), 1, incarnation, "fingerprint", "copy", "", REGION)


def open_to(link: PeerLink, group: str) -> Hello | None:
    """Whom of a group of one rank it is open to, without what differs from session to session."""
    said = link.hello(group, RankId(0))
    if said is None:
        return None
    (event,) = [bare(PeerOpened(said))]
    assert isinstance(event, PeerOpened)
    return event.hello


def bare(event: Event) -> Event:
    if not isinstance(event, PeerOpened):
        return event
    said = event.hello
    return PeerOpened(msgspec.structs.replace(said, endpoint="", region=REGION, probe=0, fence=0, session=0))


def member(mine: Hello, role: RoleName, peers: str) -> Member:
    group = Group(role, mine.group, (2,))
    return Member(group, mine.rank, mine.incarnation, 0, "h", "f", "m", "", "", "", Limits(), peers=peers)


class Rig:
    """Any number of ranks in one process, each with its link and everything it has heard."""

    def __init__(self, directory: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets = Sockets(self.context, b"secret")
        self.directory = directory
        self.now_s = 0.0
        self.links: dict[PeerLink, list[Event]] = {}
        self.members: dict[PeerLink, Member] = {}
        self.transports: dict[PeerLink, Transports] = {}
        self.thrown: dict[PeerLink, queue.SimpleQueue[Event]] = {}
        self.greetings: list[Hello] = []  # of all PeerOpened, as they were
        self.pools: list[bytearray] = []
        self.woken = threading.Event()

    def rank(self, role: RoleName, mine: Hello) -> PeerLink:
        pool = bytearray(POOL)
        self.pools.append(pool)
        base = ctypes.addressof(ctypes.c_char.from_buffer(pool))
        there = msgspec.structs.replace(mine, region=msgspec.structs.replace(mine.region, base=base))
        tail = memoryview(pool)[mine.region.bytes :]
        transports, thrown = Transports(f"{mine.group}{mine.rank}"), queue.SimpleQueue[Event]()
        edges = Edges(transports)
        made = PeerLink(there, self.sockets, edges, tail, role, self.directory, self.woken.set, thrown.put)
        self.links[made], self.transports[made], self.thrown[made] = [], transports, thrown
        self.members[made] = member(mine, role, made.address)
        return made

    def gone(self, link: PeerLink) -> None:
        del self.links[link], self.members[link]
        link.close()

    def introduce(self) -> None:
        for link in self.links:
            link.on_members(list(self.members.values()))

    def pump(self) -> None:
        """As the driver does: what other threads have thrown comes first."""
        for link, heard in list(self.links.items()):
            while not self.thrown[link].empty():
                heard.append(self.thrown[link].get())
            for event in link.receive():
                heard.append(bare(event))
                self.greetings += [event.hello] if isinstance(event, PeerOpened) else []

    def step(self, seconds: float) -> bool:
        self.now_s += seconds
        for link in self.links:
            link.tick(self.now_s)
        return False

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, {link.address: heard for link, heard in self.links.items()}
            self.pump()
            self.introduce()
            os.sched_yield()

    def until_heard(self, link: PeerLink, *events: Event) -> None:
        self.until(lambda: self.links[link] == list(events))
        self.links[link].clear()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.sockets.close()
        self.context.term()


def pair(rig: Rig) -> tuple[PeerLink, PeerLink]:
    """A prefill rank p/0 and a decode rank d/0, open to each other."""
    prefill, decode = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d"))
    rig.introduce()
    rig.until_heard(prefill, PeerOpened(hello("d")))
    rig.until_heard(decode, PeerOpened(hello("p")))
    return prefill, decode
