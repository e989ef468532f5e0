"""A prefill and a decode group that compute nothing and take a modelled time: the capacity of both is known.

Prefill does one prompt after the other. Decode has a bounded batch; each of its requests gets a token per step. Both
queue what they cannot begin, first come first served, as real groups do.
"""

import heapq
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from bench.beside import ordered, tell
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Cancel, Done, Load, ToGroup, Token, Watch
from tandem.core.requests import Work, ending

PREFILL, DECODE = "p0", "d0"
PAGE = 16
POLL_MS = 5


class Modelled(msgspec.Struct, frozen=True):
    """Seconds and counts of both groups."""

    prompt_s: float = 0.05  # of one prompt, alone on prefill
    step_s: float = 0.01  # between two tokens of a request
    batch: int = 32  # requests that decode together
    tokens: int = 8  # of each answer
    seen: bool = True  # their limits tell how much they can take

    @property
    def capacity_per_s(self) -> float:
        """Requests that both can take for ever."""
        return min(1 / self.prompt_s, self.batch / (self.step_s * (self.tokens - 1)))


class Where(msgspec.Struct, frozen=True):
    """Intakes by group, and what both say that they can take."""

    addresses: dict[str, str]
    limits: Limits

    def members(self) -> list[Member]:
        """Rank 0 of both groups, as the registry would show it."""
        roles = {PREFILL: RoleName.PREFILL, DECODE: RoleName.DECODE}
        return [
            Member(
                Group(roles[name], name, (1,)), RankId(0), number, 1, "h", "f", "tiny", "", "", "", self.limits,
                epoch=Epoch(1), intake=address,
            )
            for number, (name, address) in enumerate(self.addresses.items(), 1)
        ]  # fmt: skip


@dataclass(order=True)
class _Due:
    """Something that happens at a time."""

    at: float
    number: int
    what: str = field(compare=False)
    room: Room = field(compare=False)


class Groups:
    """Both groups, in one thread."""

    def __init__(self, modelled: Modelled) -> None:
        self._modelled = modelled
        self._decode = msgspec.msgpack.Decoder(ToGroup).decode
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self.addresses: dict[str, str] = {}
        for name in (PREFILL, DECODE):
            intake = self._sockets[name] = self._context.socket(zmq.ROUTER)
            intake.linger = 0
            intake.bind("tcp://127.0.0.1:*")
            endpoint = intake.getsockopt(zmq.LAST_ENDPOINT)
            assert isinstance(endpoint, bytes)
            self.addresses[name] = endpoint.rstrip(b"\0").decode()
        self._works: dict[Room, dict[str, tuple[bytes, Work]]] = {}
        self._line: deque[Room] = deque()  # at prefill
        self._landed: deque[Room] = deque()  # at decode, without a place in its batch
        self._running: dict[Room, int] = {}  # tokens so far
        self._busy = False
        self._due: list[_Due] = []
        self._number = 0

    @property
    def limits(self) -> Limits:
        """As a real group has them; or such that nobody can see from outside when they are full."""
        if self._modelled.seen:
            return Limits(page_size=PAGE, num_pages=1 << 20, chunked_prefill_size=64, max_prefill_tokens=64)
        return Limits(page_size=PAGE, num_pages=1 << 20, chunked_prefill_size=1 << 20, max_prefill_tokens=1 << 20)

    def run(self) -> None:
        """For ever."""
        poller = zmq.Poller()
        for intake in self._sockets.values():
            poller.register(intake, zmq.POLLIN)
        while True:
            left_ms = (self._due[0].at - time.monotonic()) * 1000 if self._due else POLL_MS
            for intake, _ in poller.poll(max(0, min(POLL_MS, round(left_ms)))):
                name = next(name for name, other in self._sockets.items() if other is intake)
                while intake.poll(0):
                    self._on(name, *intake.recv_multipart())
            while self._due and self._due[0].at <= time.monotonic():
                self._happen(heapq.heappop(self._due))

    def _on(self, name: str, router: bytes, payload: bytes) -> None:
        match self._decode(payload):
            case Watch():
                prefill = name == PREFILL
                waiting = len(self._line) if prefill else len(self._landed)
                running = int(self._busy) if prefill else len(self._running)
                self._send(name, router, Load(name, waiting, running, 1 << 20))
            case Submit(work=work):
                sides = self._works.setdefault(work.room, {})
                sides[name] = (router, work)
                if name == PREFILL:
                    self._line.append(work.room)
                    self._prefill()
            case Cancel(room=room):
                self._end(room)

    def _happen(self, due: _Due) -> None:
        if due.what == "prefilled":
            self._busy = False
            if due.room in self._works:
                self._token(due.room, PREFILL, 0)
                self._landed.append(due.room)
                self._decode_more()
            self._prefill()
        elif due.room in self._running:
            index = self._running[due.room] = self._running[due.room] + 1
            if not self._token(due.room, DECODE, index):
                self._later(self._modelled.step_s, "step", due.room)

    def _prefill(self) -> None:
        while self._line and not self._busy:
            room = self._line.popleft()
            if room in self._works:
                self._busy = True
                self._later(self._modelled.prompt_s, "prefilled", room)

    def _decode_more(self) -> None:
        while self._landed and len(self._running) < self._modelled.batch:
            room = self._landed.popleft()
            if room in self._works:
                self._running[room] = 0
                self._token(room, DECODE, 0)
                self._later(self._modelled.step_s, "step", room)

    def _token(self, room: Room, name: str, index: int) -> bool:
        """True when it was the last one."""
        if name not in self._works[room]:
            return False
        router, work = self._works[room][name]
        self._send(name, router, Token(room, index, ord("a")))
        reason = ending(work, index + 1, ord("a"))
        if reason is None:
            return False
        self._send(name, router, Done(room, reason))
        self._end(room)
        return True

    def _end(self, room: Room) -> None:
        self._works.pop(room, None)
        if self._running.pop(room, None) is not None:
            self._decode_more()

    def _later(self, seconds: float, what: str, room: Room) -> None:
        self._number += 1
        heapq.heappush(self._due, _Due(time.monotonic() + seconds, self._number, what, room))

    def _send(self, name: str, router: bytes, message: Any) -> None:
        self._sockets[name].send_multipart([router, msgspec.msgpack.encode([message])])


if __name__ == "__main__":
    groups = Groups(ordered(Modelled))
    tell(Where(groups.addresses, groups.limits))
    groups.run()
