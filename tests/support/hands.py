"""Ranks without a scheduler, each in a process of its own: peer link, posting, fences, real Mooncake over TCP.

A test gives orders as lines of JSON and hears a line for everything that happens.
"""

import ctypes
import hashlib
import json
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import zmq
from waiting import stop_still

from kvtransfer.edges import Edges
from kvtransfer.peer_link import PeerLink
from kvtransfer.posting import Posting
from kvtransfer.transports.mooncake import MooncakeTransport
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Post
from tandem.core.events import Event, Fenced, Moved, PeerLost, PeerOpened, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Commit, Grant, Hello, Region
from tandem.ports import TAIL_BYTES, Transport
from tandem.runtime.inbox import ThreadInbox
from tandem.runtime.links import Sockets

LAYERS, PAGES, SIZE = 4, 256, 24576
POOL = LAYERS * PAGES * SIZE
TOKENS = 16
SECRET = b"a secret" * 8
"""What a prefill rank's pages hold that were given to others."""
ROOM = Room(RequestId(5), 1)
GRANTED = tuple(PageId(page) for page in range(200, 40, -3))
DEADLINE_S = 60
POLL_MS = 100
FIRST = RankId(0)


Start = Callable[..., "Rank"]
"""Starts one, with its arguments, for as long as the test lasts."""


class Writes(NamedTuple):
    """Of a zombie."""

    begun: int
    well: int
    failed: int

    @property
    def under_way(self) -> bool:
        return self.begun > self.well + self.failed


WRITES = struct.Struct("<3q")


def writes(path: str | os.PathLike[str]) -> Writes:
    """What a zombie has written so far, also while it is paused."""
    with open(path, "rb") as file:
        return Writes(*WRITES.unpack(file.read(WRITES.size).ljust(WRITES.size, b"\0")))


class Rank:
    """One rank's process, seen from the test."""

    def __init__(
        self,
        group: str,
        role: RoleName,
        incarnation: int = 1,
        *,
        scale: float = 1.0,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`inside` is a command that runs the one after it in some other place."""
        self.name = group
        self._kept: deque[Any] = deque()
        self.process = subprocess.Popen(
            [*inside, sys.executable, __file__, group, role.value, str(incarnation), str(scale)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what select sees is all there is
            env={**os.environ, **environment},
        )
        self.member = self.heard()

    def heard(self) -> Any:
        """What happened to it next."""
        return self._kept.popleft() if self._kept else self._line()

    def until(self, what: Any) -> None:
        """Hear until this has happened."""
        heard = []
        while (happened := self.heard()) != what:
            heard.append(happened)
            assert len(heard) < 100, heard

    def _line(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], f"nothing heard from {self.name} in time"
        return json.loads(self.process.stdout.readline())

    def silent(self) -> bool:
        """Whether nothing has happened to it that was not heard yet."""
        return not self._kept and not select.select([self.process.stdout], [], [], 0)[0]

    def tell(self, what: str, *more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, *more]).encode() + b"\n")

    def ask(self, what: str, *more: Any) -> Any:
        """The answer to an order; what happens before it is heard later."""
        self.tell(what, *more)
        while (line := self._line())[0] != what:
            self._kept.append(line)
        return line[1]

    def pause(self) -> None:
        """All of its threads, wherever they are."""
        stop_still(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def hand_over(prefill: Rank, decode: Rank) -> None:
    """Every granted page of every layer holds the source's bytes, and nothing else is touched."""
    decode.tell("grant", prefill.name)
    assert sorted(decode.heard() for _ in range(LAYERS)) == [["committed", layer, True] for layer in range(LAYERS)]
    assert sorted(prefill.heard() for _ in range(LAYERS)) == [["moved", layer, "ok"] for layer in range(LAYERS)]


def content(layer: int, page: int) -> bytes:
    return hashlib.sha256(f"{layer} {page}".encode()).digest() * (SIZE // 32)


def whole_content() -> bytes:
    return b"".join(content(layer, page) for layer in range(LAYERS) for page in range(PAGES))


# a rank's process


class Hands:
    """A tiny driver: everything a rank has but its scheduler. A prefill rank's pool is full, a decode rank's empty."""

    def __init__(self, group: str, role: RoleName, incarnation: int, scale: float) -> None:
        self.pool = mmap.mmap(-1, POOL + TAIL_BYTES)
        if role is RoleName.PREFILL:
            self.pool[:POOL] = whole_content()
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.pool))
        self.region = Region(base, LayerId(0), LayerId(LAYERS), PAGES, SIZE)
        self.held: dict[str, threading.Event] = {}  # by group, those that are not to be reached yet
        self.edges = Edges(self.transport)
        self.group = Group(role, group, (LAYERS,))
        hello = Hello(group, FIRST, 1, incarnation, "f", self.edges.kind, "", self.region)
        sockets = Sockets(zmq.Context(), b"secret")
        self.inbox: ThreadInbox[Event] = ThreadInbox()
        wake, throw, tail = self.inbox.wake, self.inbox.put, memoryview(self.pool)[POOL:]
        self.peers = PeerLink(hello, sockets, self.edges, tail, role, "127.0.0.1", wake, throw, scale)
        self.posting = Posting(
            self.edges, self, self.peers.hello, lambda wrote: self.inbox.put(wrote.moved), self.peers.wrote
        )
        mine = Member(self.group, FIRST, incarnation, 0, "h", "f", "m", "", "", "", Limits(), peers=self.peers.address)
        say(msgspec.to_builtins(mine))
        self.zombie: Zombie | None = None
        self.granted_to = ""
        self.orders = os.fdopen(sys.stdin.fileno(), "rb", buffering=0)  # the poller sees all that waits

    def transport(self) -> Transport:
        made = HeldTransport(self, "127.0.0.1")
        made.register(self.region.base, POOL + TAIL_BYTES)
        return made

    def turn(self) -> None:
        """One round of a tick loop."""
        poller = zmq.Poller()
        for source in [*self.peers.sockets(), self.inbox.fd, self.orders]:
            poller.register(source, zmq.POLLIN)
        if self.orders.fileno() in dict(poller.poll(POLL_MS)):
            self.on_order(json.loads(self.orders.readline()))
        self.peers.tick(time.monotonic())
        for event in [*self.inbox.take(), *self.peers.receive()]:
            self.on(event)

    def on_order(self, order: list[Any]) -> None:
        match order:
            case ["meet", *members]:
                self.peers.on_members(msgspec.convert(members, list[Member]))
            case ["grant", group]:
                self.pool[:POOL] = bytes(POOL)
                self.peers.send(group, FIRST, Grant(self.group.name, ROOM, FIRST, 0, GRANTED))
            case ["fence", group]:
                self.peers.fence(group)
                self.posting.abandon(group)
            case ["hold", group]:
                self.held[group] = threading.Event()
            case ["reach", group]:
                self.held.pop(group).set()
            case ["endpoint", group]:
                say(["endpoint", self.edges.open(group).endpoint])
            case ["refused"]:
                say(["refused", self.peers.counts["refused"]])
            case ["rise", group, path]:
                self.zombie = Zombie(self, group, path)
            case ["lie down"]:
                assert self.zombie is not None
                self.zombie.tired = True
            case ["restore"]:
                self.pool[:POOL] = whole_content()
            case ["secret"]:
                say(["secret", self.pool.find(SECRET) >= 0])
            case ["landed"]:
                say(["landed", POOL - self.pool[:POOL].count(0)])
            case _:
                raise ValueError(f"no such order: {order}")

    def on(self, event: Event) -> None:
        match event:
            case PeerOpened(hello=hello):
                say(["opened", hello.group, hello.incarnation, hello.fence])
            case PeerLost(group=group):
                say(["lost", group])
            case Fenced(group=group):
                self.give_away()
                say(["fenced", group])
            case Grant(group=group, pages=pages):
                for layer in range(LAYERS):
                    blocks = tuple((PageId(source), page) for source, page in enumerate(pages))
                    self.posting.post(Post(layer, ROOM, group, FIRST, LayerId(layer), blocks))
                self.granted_to = group
            case Moved(ticket=ticket, result=result):
                say(["moved", ticket, result.value])
                if result is Written.OK:
                    commit = Commit(ROOM, LayerId(ticket), 0, TOKENS * len(GRANTED))
                    self.peers.send(self.granted_to, FIRST, commit)
            case Commit(layer=layer):
                say(["committed", layer, self.holds(layer)])

    def give_away(self) -> None:
        """All pages go to somebody else, as it were: there is nothing in them, or something that nobody may see."""
        decode = self.group.role is RoleName.DECODE
        self.pool[:POOL] = bytes(POOL) if decode else SECRET * (POOL // len(SECRET))

    def holds(self, layer: int) -> bool:
        """Whether the layer's granted pages hold the source's bytes, and all others none."""
        expected = dict(zip(GRANTED, (content(layer, page) for page in range(len(GRANTED))), strict=True))
        start = layer * PAGES * SIZE
        return all(
            self.pool[start + page * SIZE : start + (page + 1) * SIZE] == expected.get(PageId(page), bytes(SIZE))
            for page in range(PAGES)
        )


class HeldTransport(MooncakeTransport):
    """Reaches for those on hold only when it is told to."""

    def __init__(self, hands: Hands, host: str) -> None:
        super().__init__(host)
        self._held = hands.held

    def connect(self, peer: Hello, deadline_s: float) -> None:
        if (told := self._held.get(peer.group)) is not None:
            say(["reaching", peer.group])
            told.wait()
        super().connect(peer, deadline_s)


class Zombie:
    """Writes the whole pool to the session that is open now, again and again, whatever it is told later.

    A file has the counts of writes that it has begun, that ended well, and that failed.
    """

    def __init__(self, hands: Hands, group: str, path: str) -> None:
        hello = hands.peers.hello(group, FIRST)
        assert hello is not None
        self.tired = False
        self._hands = hands
        self._hello = hello
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        pages = [(self._hands.region.base + start, self._hello.region.base + start) for start in range(0, POOL, SIZE)]
        blocks = [(source, destination, SIZE) for source, destination in pages]
        results: Counter[Written] = Counter()
        while not self.tired:
            with self._hands.edges.using(self._hello.group) as transport:
                self._tell(1, results)
                if transport is not None:
                    results[transport.write(self._hello, blocks, DEADLINE_S)] += 1
            self._tell(0, results)

    def _tell(self, begun: int, results: Counter[Written]) -> None:
        counts = Writes(results.total() + begun, results[Written.OK], results.total() - results[Written.OK])
        os.pwrite(self._file, WRITES.pack(*counts), 0)


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    hands = Hands(sys.argv[1], RoleName(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    while True:
        hands.turn()
