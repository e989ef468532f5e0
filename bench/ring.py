"""How long a round of the ring without work takes, with every rank in a process of its own, against bare hops.

Ranks, sockets and encoding are the real ones. A round is a tick whose frame has an order for nobody: its baton goes
through all ranks, each passes it on and steps, and the last one tells rank 0. A hop is a few bytes over such a socket.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import msgspec
import zmq

from bench.rows import Row, row
from tandem.assembly import build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import SendNext
from tandem.core.events import Event
from tandem.core.ids import Epoch, RankId
from tandem.core.inputs import Control, Order
from tandem.core.messages import OnRing
from tandem.runtime.links import Sockets, encode, post

BENCH = "ring"
HOP = b"hop"
ORPHANED_MS = 1000
"""How often a rank looks whether the benchmark is still there."""
PATIENCE_MS = 10_000


class Seat:
    """One process of the ring: a rank of a decode group and its two sockets."""

    def __init__(self, rank: int, size: int, directory: str) -> None:
        self.rank = build_rank(Group(RoleName.DECODE, "d0", (1,) * size), RankId(rank), Epoch(1), Limits())
        self._sockets: Sockets[zmq.Socket[bytes]] = Sockets(zmq.Context(), b"")
        self._inbox, _ = self._sockets.bind(zmq.PULL, directory, f"{rank}-ring")
        self._out = self._sockets.connect(zmq.PUSH, f"ipc://{directory}/{(rank + 1) % size}-ring")
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._decode = msgspec.msgpack.Decoder(OnRing).decode

    def close(self) -> None:
        """Close the sockets."""
        self._sockets.close()

    def send(self, message: bytes) -> None:
        """To the next rank."""
        assert post(self._out, message)

    def receive(self, wait_ms: int) -> list[bytes]:
        """What has come; waits for the first."""
        found: list[bytes] = []
        if self._poller.poll(wait_ms):
            with contextlib.suppress(zmq.Again):
                while True:
                    found.append(self._inbox.recv(zmq.NOBLOCK))
        return found

    def on(self, event: Event) -> None:
        """Feed the rank and send what it has for the next one."""
        for effect in self.rank.flow(event, now_ms=0):
            if isinstance(effect, SendNext):
                self.send(encode(effect.message))

    def follow(self) -> None:
        """A rank that is not the first: pass on and step, until the benchmark has gone."""
        benchmark = os.getppid()
        while os.getppid() == benchmark:
            for message in self.receive(ORPHANED_MS):
                if message != HOP:
                    self.on(self._decode(message))
                if message == HOP or self.rank.place.last:
                    self.send(HOP)

    # rank 0

    def hops_us(self) -> float:
        """Once around, as bare bytes."""
        start_ns = time.perf_counter_ns()
        self.send(HOP)
        assert self.receive(PATIENCE_MS) == [HOP]
        return (time.perf_counter_ns() - start_ns) / 1000

    def round_us(self) -> float:
        """One tick, until the last rank has stepped it and said so."""
        start_ns = time.perf_counter_ns()
        self.on(Control(Order.RESUME))
        assert self.receive(PATIENCE_MS) == [HOP]
        return (time.perf_counter_ns() - start_ns) / 1000


def measure(*, quick: bool, seed: int) -> list[Row]:
    """All cases. Nothing here is random."""
    del seed
    return [found for ranks in (2, 4) for found in ring_rows(ranks, 5 if quick else 25)]


def ring_rows(ranks: int, turns: int) -> list[Row]:
    """One ring size."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-ring-"))
        for rank in range(1, ranks):
            command = [sys.executable, "-P", "-m", "bench.ring", str(rank), str(ranks), directory]
            stack.callback(_end, subprocess.Popen(command))
        seat = Seat(0, ranks, directory)
        stack.callback(seat.close)
        hops, rounds = alternate(seat.hops_us, seat.round_us, turns)
    reference = (f"{ranks} one-way hops", hops)
    return [row(BENCH, f"round without work, P = {ranks}", rounds, "us", reference=reference, bar="<= 1.5")]


def alternate(one: Callable[[], float], other: Callable[[], float], turns: int, inner: int = 20) -> tuple[float, float]:
    """Medians of both, in turn, so that a drift of the machine hits both; the first turn warms up."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for timed, values in zip((one, other), found, strict=True):
            value = statistics.median(timed() for _ in range(inner))
            if turn:
                values.append(value)
    return statistics.median(found[0]), statistics.median(found[1])


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()


if __name__ == "__main__":
    Seat(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).follow()
