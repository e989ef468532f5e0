"""The time to the first token, through the router and straight from the groups, in turn: in a process of its own.

The client of either is a blocking socket: HTTP over a connection that stays, and the groups' own protocol.
"""

import secrets
import socket
import time
from collections.abc import Callable

import msgspec
import zmq

from bench.apart import answer, apart, ordered
from bench.router.load import FIRST, LAST_CHUNK, request
from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Done, Token, ToRouters
from tandem.core.requests import Sampling, Work
from tandem.runtime.links import Decoder, Sockets, encode

PATIENCE_S = 60
TOKENS = 2
"""Of an answer: with one, no decode group is needed."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """`count` times of either, one after the other."""

    port: int
    body: str
    prompt: tuple[int, ...]
    prefill: tuple[str, str]  # group and intake
    decode: tuple[str, str]
    count: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from the first byte of each request to its first token."""

    routed_ms: list[float]
    direct_ms: list[float]


def run(order: Order) -> Found:
    """Ask now. Raises CalledProcessError for an answer that was not what was asked for."""
    return apart("bench.router.first_token", order, Found)


class Routed:
    """Through the router."""

    def __init__(self, port: int, body: str) -> None:
        self._line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._content = request(port, body)

    def ask(self) -> float:
        """Milliseconds. Reads the answer to its end."""
        begun_s, text, first_s = time.perf_counter(), b"", 0.0
        self._line.sendall(self._content)
        while not text.endswith(LAST_CHUNK):
            data = self._line.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the router closed the connection after {text[-500:]!r}")
            text += data
            if not first_s and FIRST in text:
                first_s = time.perf_counter()
        if not first_s:
            raise ConnectionError(f"no token came: {text[:500]!r}")
        return (first_s - begun_s) * 1000


class Direct:
    """Straight from the groups."""

    def __init__(self, prefill: tuple[str, str], decode: tuple[str, str], prompt: tuple[int, ...]) -> None:
        sockets: Sockets[zmq.Socket[bytes]] = Sockets(zmq.Context(), b"")
        self._lines = [sockets.connect(zmq.DEALER, intake, last_words=True) for _, intake in (prefill, decode)]
        self._peers = (decode[0], prefill[0])
        self._prompt = prompt
        self._decode: Decoder[ToRouters] = Decoder(ToRouters)
        for line in self._lines:
            line.rcvtimeo = line.sndtimeo = PATIENCE_S * 1000

    def ask(self) -> float:
        """Milliseconds. Reads the answer to its end."""
        room = Room(RequestId(secrets.randbits(63)), 1)
        begun_s = time.perf_counter()
        for line, peer in zip(self._lines, self._peers, strict=True):
            work = Work(room, self._prompt, TOKENS, (), Sampling(), peer)
            line.send(encode(Submit(work, PATIENCE_S * 1000)))
        first = self._decode(self._lines[0].recv())[0]
        first_s = time.perf_counter()
        assert isinstance(first, Token)
        assert first.room == room
        while not isinstance(self._decode(self._lines[1].recv())[-1], Done):
            pass
        return (first_s - begun_s) * 1000


def main(order: Order) -> Found:
    """The first of each only warms up."""
    sides: list[Callable[[], float]] = [
        Routed(order.port, order.body).ask,
        Direct(order.prefill, order.decode, order.prompt).ask,
    ]
    times = [[side() for side in sides] for _ in range(order.count + 1)][1:]
    return Found(routed_ms=[each[0] for each in times], direct_ms=[each[1] for each in times])


if __name__ == "__main__":
    answer(main(ordered(Order)))
