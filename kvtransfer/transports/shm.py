"""The transport between processes of one host: the receiver copies, out of the writer's page pool into its own.

A writer hands its pool over as a memfd, which the kernel lets no other process write, and asks for copies. So a fence
is to stop copying. It needs no rights but those to the run directory, which guards it like all unix sockets there.
"""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvtransfer.transports.blocks import Block, coalesce
from kvtransfer.transports.shm_line import Line
from kvtransfer.transports.shm_receiver import Receiver
from tandem.core.events import Written
from tandem.core.messages import Hello
from tandem.runtime.links import ipc_address

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ShmTransport:
    """ports.Transport over one memfd. Several threads may write; writes to one peer follow each other.

    `endpoint` is host:token:path. The token is new each time: a restarted rank is never taken for the one before it on
    the same path.
    """

    kind = "shm"

    def __init__(self, run_dir: str, name: str, memfd: int) -> None:
        """Listen at run_dir/name. The memfd is that of the memory which `register` names. Raises ConfigError."""
        path = ipc_address(run_dir, name).removeprefix("ipc://")
        self._host = BOOT_ID.read_text().strip()
        self.endpoint = f"{self._host}:{secrets.token_hex(8)}:{path}"
        self._memfd = memfd
        self._base: int | None = None
        self._lines: dict[str, Line] = {}  # by endpoint
        self._calls = 0
        self._closed = False
        self._one_closes = threading.Lock()
        self._changed = threading.Condition()
        self._receiver = Receiver(path, self.endpoint)
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)

    def register(self, base: int, length: int) -> None:
        """Let peers have copied into [base, base + length), which must be mapped from the start of the memfd."""
        assert self._base is None, "the memfd holds one range"
        assert length <= os.fstat(self._memfd).st_size, "the memfd is shorter than the memory it is said to hold"
        self._base = base
        self._receiver.register(base, length)

    def connect(self, peer: Hello, deadline_s: float) -> None:
        """Raises ConnectionError when the peer is of another kind or host, or gives no answer within the deadline."""
        if peer.transport != self.kind:
            raise ConnectionError(f"{peer.group}/{peer.rank} uses {peer.transport}, this rank {self.kind}")
        end_s = time.monotonic() + deadline_s
        with self._calling():
            self._line(peer).ping(end_s)

    def write(self, peer: Hello, blocks: Sequence[Block], deadline_s: float) -> Written:
        """Have the peer copy all blocks. A failure is unsettled when the peer was asked and is silent."""
        end_s = time.monotonic() + deadline_s
        assert self._base is not None, "register before the first write"
        base = self._base
        try:
            with self._calling():
                asked = [(source - base, destination, length) for source, destination, length in coalesce(blocks)]
                return self._line(peer).write(asked, end_s)
        except ConnectionError:
            return Written.FAILED_SETTLED

    def close(self) -> None:
        """Copy nothing more, end the calls in progress as if their deadline had passed, and wait for them.

        A peer in the middle of a copy goes on to its end: it reads our pages, into pages of its own that were never
        committed. What it had not begun it leaves.
        """
        with self._one_closes:
            if self._closed:
                return
            with self._changed:
                self._closed = True
                os.eventfd_write(self._closing, 1)
                self._changed.wait_for(lambda: self._calls == 0)
            self._receiver.close()
            for line in self._lines.values():
                line.close()
            os.close(self._closing)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Within, `close` waits. Raises ConnectionError after it."""
        with self._changed:
            if self._closed:
                raise ConnectionError("this transport has been closed")
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _line(self, peer: Hello) -> Line:
        """Raises ConnectionError for a peer that shares no memory with this process."""
        host, _, rest = peer.endpoint.partition(":")
        if host != self._host:
            raise ConnectionError(
                f"{peer.group}/{peer.rank} is on another host: shm works within one, use "
                "--disaggregation-transfer-backend mooncake on all ranks"
            )
        with self._changed:
            if peer.endpoint not in self._lines:
                for line in self._lines.values():
                    line.close_if_dead()
                path = rest.partition(":")[2]
                self._lines[peer.endpoint] = Line(peer.endpoint, path, self._memfd, self._closing)
            return self._lines[peer.endpoint]
