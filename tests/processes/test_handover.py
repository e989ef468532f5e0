"""Prefill and decode ranks in processes of their own: handshake over CURVE, grant, Mooncake writes, commits."""

import ctypes
import hashlib
import json
import mmap
import queue
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq

from kvtransfer.peer_link import PeerLink
from kvtransfer.posting import Posting
from kvtransfer.transports.mooncake import MooncakeTransport
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Post
from tandem.core.events import Moved, PeerLost, PeerOpened, Written
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.members import Member
from tandem.core.messages import Commit, Grant, Hello, Region
from tandem.runtime.links import Sockets

LAYERS, PAGES, SIZE = 4, 256, 24576
TOKENS = 16
ROOM = Room(RequestId(5), 1)
GRANTED = tuple(PageId(page) for page in range(200, 40, -3))
DEADLINE_S = 60
POLL_MS = 100


def content(layer: int, page: int) -> bytes:
    return hashlib.sha256(f"{layer} {page}".encode()).digest() * (SIZE // 32)


class Rank:
    """One rank's process, seen from the test: prints a line of JSON for everything that happens to it."""

    def __init__(self, role: RoleName, incarnation: int) -> None:
        pipe = subprocess.PIPE
        order = [sys.executable, __file__, role.value, str(incarnation)]
        self.process = subprocess.Popen(order, stdin=pipe, stdout=pipe, bufsize=0)  # what select sees is all there is
        self.member = self.heard()

    def heard(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "nothing heard within the deadline"
        return json.loads(self.process.stdout.readline())

    def tell(self, *members: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(members).encode() + b"\n")

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[[RoleName, int], Rank]]:
    """Starts ranks; none outlives its test."""
    started: list[Rank] = []

    def rank(role: RoleName, incarnation: int) -> Rank:
        started.append(Rank(role, incarnation))
        return started[-1]

    yield rank
    for one in started:
        one.stop()


def test_kv_is_handed_over_and_again_after_a_restart(start: Callable[[RoleName, int], Rank]) -> None:
    """Every granted page of every layer holds the source's bytes; a new prefill process takes over the session."""
    prefill, decode = start(RoleName.PREFILL, 1), start(RoleName.DECODE, 1)
    decode.tell(prefill.member)
    assert prefill.heard() == ["opened", "g-decode", 1]
    assert decode.heard() == ["opened", "g-prefill", 1]
    assert sorted(decode.heard() for _ in range(LAYERS)) == [["landed", layer, True] for layer in range(LAYERS)]
    prefill.stop()
    successor = start(RoleName.PREFILL, 2)
    decode.tell(successor.member)
    assert decode.heard() == ["lost", "g-prefill", 0]
    assert decode.heard() == ["opened", "g-prefill", 2]
    assert sorted(decode.heard() for _ in range(LAYERS)) == [["landed", layer, True] for layer in range(LAYERS)]


def test_a_decode_rank_that_restarts_is_served_anew(start: Callable[[RoleName, int], Rank]) -> None:
    prefill, decode = start(RoleName.PREFILL, 1), start(RoleName.DECODE, 1)
    decode.tell(prefill.member)
    assert prefill.heard() == ["opened", "g-decode", 1]
    decode.stop()
    successor = start(RoleName.DECODE, 2)
    successor.tell(prefill.member)
    assert prefill.heard() == ["lost", "g-decode", 0]
    assert prefill.heard() == ["opened", "g-decode", 2]
    assert successor.heard() == ["opened", "g-prefill", 1]
    assert sorted(successor.heard() for _ in range(LAYERS)) == [["landed", layer, True] for layer in range(LAYERS)]


# a rank's process


class Hands:
    """A tiny driver: everything a rank has but its scheduler."""

    def __init__(self, role: RoleName, incarnation: int) -> None:
        self.pool = mmap.mmap(-1, LAYERS * PAGES * SIZE)
        if role is RoleName.PREFILL:
            self.pool[:] = b"".join(content(layer, page) for layer in range(LAYERS) for page in range(PAGES))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.pool))
        self.region = Region(base, LayerId(0), LayerId(LAYERS), PAGES, SIZE)
        transport = MooncakeTransport("127.0.0.1")
        transport.register(base, len(self.pool))
        self.group = Group(role, f"g-{role.value}", (LAYERS,))
        hello = Hello(self.group.name, RankId(0), 1, incarnation, "f", transport.kind, transport.endpoint, self.region)
        sockets = Sockets(zmq.Context(), b"secret")
        self.peers = PeerLink(hello, sockets, transport, role, "127.0.0.1", lambda: None)
        self.moved: queue.SimpleQueue[Moved] = queue.SimpleQueue()
        self.posting = Posting(transport, self.region, self.peers.hello, lambda wrote: self.moved.put(wrote.moved))
        mine = Member(self.group, RankId(0), incarnation, 0, "h", "f", "m", "", "", "", Limits())
        say(msgspec.to_builtins(msgspec.structs.replace(mine, peers=self.peers.address)))
        self.now_s = 0.0

    def turn(self) -> None:
        """One round of a tick loop."""
        poller = zmq.Poller()
        for socket in [*self.peers.sockets(), sys.stdin.fileno()]:
            poller.register(socket, zmq.POLLIN)
        if sys.stdin.fileno() in dict(poller.poll(POLL_MS)):
            self.peers.on_members(msgspec.json.decode(sys.stdin.readline(), type=list[Member]))
        self.now_s += POLL_MS / 1000
        self.peers.tick(self.now_s)
        for event in self.peers.receive():
            match event:
                case PeerOpened(hello=hello):
                    say(["opened", hello.group, hello.incarnation])
                    if self.group.role is RoleName.DECODE:
                        self.pool[:] = bytes(len(self.pool))
                        self.peers.send(hello.group, hello.rank, Grant(self.group.name, ROOM, RankId(0), 0, GRANTED))
                case PeerLost(group=group, rank=rank):
                    say(["lost", group, rank])
                case Grant():
                    for layer in range(LAYERS):
                        blocks = tuple((PageId(source), page) for source, page in enumerate(event.pages))
                        self.posting.post(Post(layer, ROOM, "g-decode", RankId(0), LayerId(layer), blocks))
                case Commit(layer=layer):
                    say(["landed", layer, self.landed(layer)])
        while not self.moved.empty():
            moved = self.moved.get()
            assert moved.result is Written.OK
            commit = Commit(ROOM, LayerId(moved.ticket), 0, TOKENS * len(GRANTED))
            self.peers.send("g-decode", RankId(0), commit)

    def landed(self, layer: int) -> bool:
        """Whether the layer's granted pages hold the source's bytes, and all others none."""
        expected = dict(zip(GRANTED, (content(layer, page) for page in range(len(GRANTED))), strict=True))
        start = layer * PAGES * SIZE
        return all(
            self.pool[start + page * SIZE : start + (page + 1) * SIZE] == expected.get(PageId(page), bytes(SIZE))
            for page in range(PAGES)
        )


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    hands = Hands(RoleName(sys.argv[1]), int(sys.argv[2]))
    while True:
        hands.turn()
