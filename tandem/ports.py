"""The ports between the pure machine and the hands: Protocols only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvtransfer.tail import TailBytes
from tandem.core.events import Written
from tandem.core.ids import LayerId, PageId
from tandem.core.inputs import TokenLogprobs
from tandem.core.messages import Hello, Region
from tandem.core.plan import Plan

TAIL_BYTES = 1 << 16
"""Behind each page pool that peers can reach."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token ids per sampled row, in plan order, and the log-probabilities of each token; none if none was asked for.

    A row without tokens has failed: its logits were not numbers.
    """

    tokens: tuple[tuple[int, ...], ...] = ()
    logprobs: TokenLogprobs = ()


NOTHING_SAMPLED = Sampled()


class Memory(Protocol):
    """One rank's page pool: per layer, each page is one contiguous block of `region.block_bytes` bytes."""

    @property
    def region(self) -> Region:
        """Where it lies."""
        ...

    @property
    def memfd(self) -> int | None:
        """A file with this memory, `region.base` first, for processes of this host to read; None: it is ours alone."""
        ...

    @property
    def tail(self) -> TailBytes:
        """The bytes right behind it, which peers can reach as well: for the known answers of handshakes."""
        ...

    def block(self, layer: LayerId, page: PageId) -> memoryview:
        """The bytes of one page of one layer: writable, without a copy, where the CPU can reach them; else a copy."""
        ...


class HostCopies(Protocol):
    """Keeps copies of pages in host memory. The engine's caller calls it, between two forwards: it may block."""

    def save(self, pages: Sequence[PageId], host_pages: Sequence[PageId]) -> None:
        """Copy all layers of pages[i] of the pool to host_pages[i]; done when it returns."""
        ...

    def load(self, host_pages: Sequence[PageId], pages: Sequence[PageId]) -> None:
        """Copy all layers of host_pages[i] back, to pages[i] of the pool; the next forward finds them there."""
        ...


class Engine(Protocol):
    """Computes the layers [first, last) of one stage. One call at a time; the caller owns the thread."""

    @property
    def memory(self) -> Memory:
        """This stage's page pool."""
        ...

    def compile(self, grammar: str) -> None:
        """Compile a JSON schema; the last stage keeps what it needs. From any thread. Raises ValueError: it cannot."""
        ...

    @property
    def hidden_bytes(self) -> int:
        """Bytes of one token's hidden state between stages."""
        ...

    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """Run one plan; return this stage's hidden states, [tokens, hidden_bytes] bytes, or on the last stage tokens.

        `hidden` is the previous stage's output; None on the first stage. Calls `layer_ran` as soon as the KV of each
        layer is in the pool. The returned memory is valid until the next call.
        """
        ...


class Transport(Protocol):
    """Writes blocks into another process's registered memory. Every call may block: never on the scheduler's thread."""

    kind: str
    endpoint: str

    def register(self, base: int, length: int) -> None:
        """Make this range writable for peers. Few, large ranges, at start."""
        ...

    def connect(self, peer: Hello, deadline_s: float) -> None:
        """Prove that the peer can be reached. Raises ConnectionError when not, within the deadline."""
        ...

    def write(self, peer: Hello, blocks: Sequence[tuple[int, int, int]], deadline_s: float) -> Written:
        """Write (source address, destination address, bytes) triples and wait until they are done or given up.

        Once it is closed nothing is written: FAILED_SETTLED.
        """
        ...

    def close(self) -> None:
        """The fence: wait for the calls in progress and end. Afterwards no peer's write lands in what was registered,
        and no write of ours reads it. Raises OSError when that could not be done: call it again.
        """
        ...


class HiddenOut(Protocol):
    """Sends hidden states to the next rank."""

    def send(self, header: bytes, payload: memoryview) -> None: ...

    def close(self) -> None: ...


class HiddenIn(Protocol):
    """Receives hidden states from the previous rank."""

    socket: Any  # for the driver's poller

    @property
    def malformed(self) -> int:
        """Messages that could not be understood."""
        ...

    def receive(self) -> tuple[bytes, memoryview] | None:
        """The next header and payload, or None if nothing has come. The payload stays valid until `release`."""
        ...

    def release(self) -> None:
        """The oldest received payload has been consumed."""
        ...

    def close(self) -> None: ...
