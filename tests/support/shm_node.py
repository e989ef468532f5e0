"""A node with the shm transport, whose copies can be held up: what the tests of this transport start, as a script."""

import ctypes
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nodes import DEADLINE_S, PAGE, PAGES, content, fill, serve, use

from kvtransfer.transports.shm import ShmTransport
from tandem.core.ids import LayerId
from tandem.engine.memory import PageMemory

LAYERS = (LayerId(0), LayerId(1))


class Gate:
    """In the place of memmove: waits after some calls until it is opened."""

    def __init__(self, calls: int) -> None:
        self.at = threading.Event()
        self._opened = threading.Event()
        self._left = calls
        self._move = ctypes.memmove
        ctypes.memmove = self.move

    def move(self, *arguments: int) -> None:
        if self._left == 0 and not self._opened.is_set():
            self.at.set()
            self._opened.wait(DEADLINE_S)
        self._left -= 1
        self._move(*arguments)

    def open(self) -> None:
        self._opened.set()


class Acting:
    """What such a node can be asked."""

    def __init__(self, memory: PageMemory, transport: ShmTransport) -> None:
        self._memory = memory
        self._transport = transport
        self._threads = ThreadPoolExecutor(2)
        self._background: Future[Any] = Future()
        self._gate: Gate | None = None
        self._tries = 0
        self._last = ""

    def __call__(self, *order: Any) -> Any:
        match order:
            case ["begin", *rest]:
                self._background = self._threads.submit(self, *rest)
            case ["ended"]:
                return self._background.done()
            case ["stops"]:
                return self._transport._receiver._closing
            case ["result"]:
                return self._background.result(DEADLINE_S)
            case ["keep", *rest]:
                self._threads.submit(self._keep, *rest)
            case ["tries"]:
                return self._tries
            case ["last"]:
                return self._last
            case ["gate", calls]:
                self._gate = Gate(calls)
            case ["at_gate"]:
                return self._gate is not None and self._gate.at.is_set()
            case ["open"]:
                assert self._gate is not None
                self._gate.open()
            case _:
                return use(self._transport, *order)
        return None

    def _keep(self, *order: Any) -> None:
        """Do it for ever, with another first page each time."""
        while True:
            self._memory.buffer[:PAGE] = content(self._tries, PAGES)
            self._last = use(self._transport, *order)
            self._tries += 1


def main(seed: int, run_dir: str, name: str) -> None:
    """A node's process."""
    memory = PageMemory(LAYERS, PAGES, PAGE, shared=True)
    fill(memory.buffer, seed)
    assert memory.memfd is not None
    transport = ShmTransport(run_dir, name, memory.memfd)
    transport.register(memory.region.base, memory.region.bytes)
    serve(memory.buffer, transport, memory.region.base, Acting(memory, transport))
    os._exit(0)  # a thread may be trying for ever


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
