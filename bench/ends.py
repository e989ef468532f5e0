"""The two ends of a transfer between processes: each has a page pool, which shm, Mooncake and a plain socket reach."""

import contextlib
import os
import secrets
import subprocess
import sys
from typing import NamedTuple

import msgspec
import numpy as np

from bench.plain_socket import Sink
from kvtransfer.transports.mooncake import MooncakeTransport
from kvtransfer.transports.shm import ShmTransport
from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello
from tandem.engine.memory import PageMemory
from tandem.ports import Transport

HOST = "127.0.0.1"
SHM, MOONCAKE = "shm", "mooncake-tcp"
KINDS = (SHM, MOONCAKE)


class Shape(NamedTuple):
    """Of a page pool."""

    layers: int
    pages: int
    block_bytes: int


class Doors(msgspec.Struct, frozen=True):
    """How a far end is reached: by each kind of transport, and at a port for one plain socket."""

    hellos: dict[str, Hello]
    port: int


class End:
    """This process's pool, every byte of it touched, and transports for it."""

    def __init__(self, run_dir: str, name: str, shape: Shape) -> None:
        layers = LayerId(0), LayerId(shape.layers)
        self.name = name
        self.memory = PageMemory(layers, shape.pages, shape.block_bytes, shared=True)
        self.region = self.memory.region
        np.frombuffer(self.memory.buffer, np.uint8)[:] = 1
        self._run_dir = run_dir
        self._transports: list[Transport] = []

    def open(self, kind: str) -> Transport:
        """A new transport with the pool registered. Raises ConfigError."""
        transport: Transport
        if kind == SHM:
            assert self.memory.memfd is not None
            transport = ShmTransport(self._run_dir, f"{self.name}-{len(self._transports)}", self.memory.memfd)
        else:
            transport = MooncakeTransport(HOST)
        transport.register(self.region.base, self.region.bytes)
        self._transports.append(transport)
        return transport

    def open_doors(self) -> Doors:
        """Let others write to this end, for as long as it lives."""
        hellos = {kind: self._hello(self.open(kind)) for kind in KINDS}
        return Doors(hellos, Sink(HOST, self.memory.buffer).port)

    def _hello(self, transport: Transport) -> Hello:
        incarnation = secrets.randbits(62)
        return Hello(self.name, RankId(0), 1, incarnation, "", transport.kind, transport.endpoint, self.region)


class FarEnd:
    """The other end, as a process that receives until it is closed."""

    def __init__(self, run_dir: str, name: str, shape: Shape) -> None:
        """Raises ConnectionError when it does not start: it has said why on standard error."""
        command = [sys.executable, "-P", "-m", "bench.ends", run_dir, name, *map(str, shape)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ConnectionError(f"the far end exited with status {self.process.wait()}")
        self.doors = msgspec.json.decode(line, type=Doors)

    def close(self) -> None:
        """End it, also if it is stopped."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def main(run_dir: str, name: str, shape: Shape) -> None:
    """Receive until standard input closes."""
    end = End(run_dir, name, shape)
    doors = end.open_doors()
    sys.stdout.buffer.write(msgspec.json.encode(doors) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Shape(*map(int, sys.argv[3:])))
