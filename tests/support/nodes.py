"""Processes with a pool of pages each, which do what a test asks on their standard input: for tests of transports."""

import hashlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello, Region
from tandem.ports import Transport

PAGE = 4096
PAGES = 8192
DEADLINE_S = 60

Pairs = list[tuple[int, int]]
"""(source page, destination page) of what is to be written."""


class Node:
    """A process of its own; page n of a fresh pool of seed s is `content(s, n)`. What it runs calls `serve`."""

    def __init__(self, script: str, seed: int, *more: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, script, str(seed), *more]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.endpoint, self.base = self._answer()

    def ask(self, *order: Any) -> Any:
        """Do it, and say how it ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def connect(self, endpoint: str, deadline_s: float) -> str:
        """The error, or nothing."""
        return str(self.ask("connect", endpoint, deadline_s))

    def write(self, to: "Node", pages: Pairs, deadline_s: float = DEADLINE_S) -> str:
        """The value of a Written."""
        return str(self.ask(*self.writing(to, pages, deadline_s)))

    def writing(self, to: "Node", pages: Pairs, deadline_s: float = DEADLINE_S) -> tuple[Any, ...]:
        """The order for that."""
        blocks = [(self.base + PAGE * source, to.base + PAGE * destination, PAGE) for source, destination in pages]
        return "write", to.endpoint, blocks, deadline_s

    def digests(self) -> list[str]:
        """Of every page of its pool."""
        return list(self.ask("digests"))

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "no answer within the deadline"
        return json.loads(self.process.stdout.readline())


def content(seed: int, page: int) -> bytes:
    return hashlib.sha256(f"{seed} {page}".encode()).digest() * (PAGE // 32)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def expect(target: Node, seed: int, *written: tuple[int, Pairs]) -> None:
    """The pages (seed of the source, pairs) hold the source's bytes, and all others what they held before."""
    expected = [digest(content(seed, page)) for page in range(PAGES)]
    for source_seed, pages in written:
        for source, destination in pages:
            expected[destination] = digest(content(source_seed, source))
    assert target.digests() == expected


# within a node


def fill(pool: Any, seed: int) -> None:
    """Give every page its content."""
    pool[:] = b"".join(content(seed, page) for page in range(PAGES))


def serve(pool: Any, transport: Transport, base: int, act: Callable[..., Any]) -> None:
    """Answer orders until standard input closes: `digests`, and those that `act` knows by their words."""
    _say([transport.endpoint, base])
    for order in _orders():
        if order == ["digests"]:
            _say([digest(pool[start : start + PAGE]) for start in range(0, PAGES * PAGE, PAGE)])
        else:
            _say(act(*order))


def use(transport: Transport, *order: Any) -> Any:
    """What can be asked of any transport."""
    match order:
        case ["connect", endpoint, deadline_s]:
            return _connect(transport, _peer(endpoint, transport.kind), deadline_s)
        case ["connect_kind", endpoint, kind]:
            return _connect(transport, _peer(endpoint, kind), 1.0)
        case ["write", endpoint, blocks, deadline_s]:
            triples = [(source, destination, length) for source, destination, length in blocks]
            return transport.write(_peer(endpoint, transport.kind), triples, deadline_s).value
        case ["close"]:
            return transport.close()
        case _:
            raise ValueError(order)


def _peer(endpoint: str, kind: str) -> Hello:
    return Hello("d", RankId(0), 1, 1, "f", kind, endpoint, Region(0, LayerId(0), LayerId(1), 1, 1))


def _connect(transport: Transport, to: Hello, deadline_s: float) -> str:
    try:
        transport.connect(to, deadline_s)
    except ConnectionError as error:
        return str(error)
    return ""


def _orders() -> Iterator[list[Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)
