"""Mock groups in a process of their own: they speak the protocol of rank 0 to routers, and compute nothing.

A prefill group answers each Submit with token 0 at once. A decode group repeats token 0 and goes on, a token for each
beat of its clock; all streams of one of its slots move at the same moment, as they do in a group of four stages. The
seed of a request says how long a beat is, in milliseconds; with 0, the whole answer comes at once.

A router that wants to hear of their prefix caches hears of full ones: each prompt's pages are new, and as many go.
"""

import contextlib
import heapq
import math
import os
import sys
import time
from dataclasses import dataclass, field

import msgspec
import redis
import zmq

from bench.beside import ordered, tell
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Cached, Cancel, Done, Load, ToGroup, Token, ToRouter, Watch
from tandem.core.portions import Portions
from tandem.core.requests import Reason
from tandem.runtime.links import RouterInbox, Sockets, encode, post, read_secret
from tandem.runtime.registry import Registry
from tandem.runtime.router_link import BATCH

SLOTS = 4
LEASE_ROUND_S = 1.0
LONGEST_MS = 1000
CACHED = 4096
"""Pages that a group's prefix cache holds."""
LIMITS = Limits(num_pages=2**22, context=8192, max_rooms=8192)


class Order(msgspec.Struct, frozen=True):
    """What they are told: where to be found, under which names, and which tokens to say again and again."""

    registry_url: str
    secret_file: str
    cluster: str
    directory: str
    model: str
    prefill: tuple[str, ...]
    decode: tuple[str, ...]
    reply: tuple[int, ...]


class Where(msgspec.Struct, frozen=True):
    """Intakes by group."""

    intakes: dict[str, str]


@dataclass(slots=True)
class Told:
    """One request on a decode group."""

    router: bytes
    room: Room
    tokens: int
    sent: int = 0


@dataclass(slots=True)
class Slot:
    """Requests that move at the same beats."""

    every_s: float
    rooms: dict[Room, Told] = field(default_factory=dict)


class MockGroup:
    """One group. `beat` is to be called when `due` says so."""

    def __init__(self, group: Group, socket: "zmq.Socket[bytes]", intake: str, order: Order) -> None:
        self.socket = socket
        self.member = Member(
            group=group,
            rank=RankId(0),
            incarnation=1,
            boot_ms=int(time.time() * 1000),
            host="mock",
            fingerprint="mock",
            model=order.model,
            ring="",
            hidden="",
            http="",
            limits=LIMITS,
            intake=intake,
            epoch=Epoch(1),
        )
        self._inbox: RouterInbox[ToGroup] = RouterInbox(socket, ToGroup)
        self._reply = order.reply
        self._slots: dict[tuple[int, int], Slot] = {}
        self._beats: list[tuple[float, tuple[int, int]]] = []
        self._where: dict[Room, tuple[int, int]] = {}
        self._portions = Portions()
        self._words: dict[bytes, list[ToRouter]] = {}
        self._count = 0
        self._told: dict[bytes, int] = {}  # how far each router that wants to hear of the cache was told
        self._pages = 0

    @property
    def due_s(self) -> float:
        """When the next beat is, by the monotonic clock."""
        return self._beats[0][0] if self._beats else float("inf")

    def take(self) -> None:
        """All that routers have said."""
        while (received := self._inbox.receive()) is not None:
            router, message = received
            match message:
                case Submit():
                    self._submit(router, message)
                case Cancel(room=room):
                    self._drop(room)
                case Watch(cached=cached):
                    name = self.member.group.name
                    self._say(router, Load(name, 0, len(self._where), LIMITS.num_pages))
                    if cached is not None and router not in self._told:
                        self._told[router] = 1
                        self._say(router, Cached(0, 1, (), ()))
                case _:
                    pass

    def beat(self) -> None:
        """The next token of each request of the slot whose turn it is."""
        due_s, key = heapq.heappop(self._beats)
        slot = self._slots[key]
        for told in list(slot.rooms.values()):
            self._token(told)
        if slot.rooms:
            heapq.heappush(self._beats, (due_s + slot.every_s, key))
        else:
            del self._slots[key]

    def _submit(self, router: bytes, message: Submit) -> None:
        work = message.work
        if router in self._told:
            self._cache(router, len(work.prompt) // LIMITS.page_size)
        told = Told(router, work.room, work.max_tokens)
        if self.member.group.role is RoleName.PREFILL:
            self._say(router, Token(work.room, 0, self._reply[0]))
            if work.max_tokens == 1:
                self._say(router, Done(work.room, Reason.LENGTH))
            return
        if message.whole:
            self._portions.begin(work.room)
        if every_ms := work.sampling.seed:
            self._join(told, every_ms)
        else:
            while told.sent < told.tokens:
                self._token(told)

    def _cache(self, router: bytes, pages: int) -> None:
        """As many pages go as come, so what the router keeps of them stays as it is: a window over endless hashes."""
        first, self._pages, after = self._pages, self._pages + pages, self._told[router]
        stored = tuple(map(page_hash, range(first, first + pages)))
        removed = tuple(map(page_hash, range(first - CACHED, first + pages - CACHED)))
        self._told[router] = after + 2 * pages
        self._say(router, Cached(after, after + 2 * pages, stored, removed))

    def _join(self, told: Told, every_ms: int) -> None:
        self._count += 1
        key = (every_ms, self._count % SLOTS)
        if key not in self._slots:
            every_s = every_ms / 1000
            self._slots[key] = Slot(every_s)
            phase_s = every_s * key[1] / SLOTS
            now_s = time.monotonic()
            heapq.heappush(self._beats, (now_s + every_s - (now_s - phase_s) % every_s, key))
        self._slots[key].rooms[told.room] = told
        self._where[told.room] = key

    def _token(self, told: Told) -> None:
        index = told.sent
        word = self._portions.next(Token(told.room, index, self._reply[index % len(self._reply)]))
        if word is not None:
            self._say(told.router, word)
        told.sent += 1
        if told.sent == told.tokens:
            if (rest := self._portions.rest(told.room)) is not None:
                self._say(told.router, rest)
            self._say(told.router, Done(told.room, Reason.LENGTH))
            self._drop(told.room)

    def _drop(self, room: Room) -> None:
        self._portions.forget(room)
        if (key := self._where.pop(room, None)) is not None:
            del self._slots[key].rooms[room]

    def _say(self, router: bytes, message: ToRouter) -> None:
        """At the end of the round, as rank 0 does."""
        words = self._words.setdefault(router, [])
        words.append(message)
        if len(words) == BATCH:
            post(self.socket, router, encode(self._words.pop(router)))

    def flush(self) -> None:
        """The round is over."""
        for router, words in self._words.items():
            post(self.socket, router, encode(words))
        self._words.clear()


def page_hash(number: int) -> int:
    """64 bits, another one for each page."""
    return number * 0x9E37_79B9_7F4A_7C15 % 2**64


class House:
    """All groups of one process, on one thread."""

    def __init__(self, order: Order) -> None:
        secret = read_secret(order.secret_file)
        self._sockets: Sockets[zmq.Socket[bytes]] = Sockets(zmq.Context(), secret)
        self._registry = Registry(order.registry_url, order.cluster, secret)
        self.groups: list[MockGroup] = []
        self._poller = zmq.Poller()
        self._poller.register(sys.stdin.fileno(), zmq.POLLIN)
        for role, names in ((RoleName.PREFILL, order.prefill), (RoleName.DECODE, order.decode)):
            for name in names:
                socket, intake = self._sockets.bind(zmq.ROUTER, order.directory, f"mock-{name}", high_water=1 << 18)
                self.groups.append(MockGroup(Group(role, name, (1,)), socket, intake, order))
                self._poller.register(socket, zmq.POLLIN)

    def serve(self) -> None:
        """Until standard input closes."""
        lease_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= lease_s:
                lease_s = now_s + LEASE_ROUND_S
                self._renew()
            wait_s = min(group.due_s for group in self.groups) - now_s
            ready = dict(self._poller.poll(math.ceil(min(LONGEST_MS, max(0, wait_s * 1000)))))
            if sys.stdin.fileno() in ready:
                return
            for group in self.groups:
                if group.socket in ready:
                    group.take()
                while group.due_s <= time.monotonic():
                    group.beat()
                group.flush()

    def _renew(self) -> None:
        with contextlib.suppress(redis.RedisError):  # told by the router, which does not become ready
            for group in self.groups:
                self._registry.publish(group.member)


def main() -> None:
    """What the benchmark starts."""
    house = House(ordered(Order))
    tell(Where({group.member.group.name: group.member.intake for group in house.groups}))
    house.serve()
    os._exit(0)


if __name__ == "__main__":
    main()
