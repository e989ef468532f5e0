"""Hidden states that stay on the device: NCCL moves the tensors, the ring's hidden link only their headers and sizes.

The two ends of a link are a process group of their own, point to point: the sender listens for the receiver on a
socket that it names in its first message. Nothing else is agreed by it, and no Python objects travel.
"""

import datetime
import itertools
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.ports import HiddenIn, HiddenOut

GREETING = b"nccl"
"""In place of a header: the payload says where the sender listens."""
SENDER, RECEIVER = 0, 1
PATIENCE = datetime.timedelta(seconds=60)
"""For the two ends to meet. How long a tensor may take is the ring's to judge."""

_TICKET = struct.Struct("<QQ")  # number, tokens

MakeGroup = Callable[[Any, int], Any]
"""A process group of two over a store, as the rank given."""


class Departures:
    """Fits the engine's way out: outputs are copied on a stream of their own and wait here for `NcclOut`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: torch.cuda.Event | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, Tensor] = {}

    def fence(self) -> None:
        """What is queued on the current stream from now on begins when the last output has been copied."""
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    def put(self, x: Tensor) -> memoryview:
        """A ticket for a copy of the output."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with self.streaming():
            copied = x.clone()
        if self._stream is not None:
            x.record_stream(self._stream)
            self._copied = self._stream.record_event()
        number = next(self._numbers)
        self._waiting[number] = copied
        return memoryview(_TICKET.pack(number, len(x)))

    def take(self, ticket: memoryview) -> Tensor:
        """What a ticket stands for; once."""
        return self._waiting.pop(_TICKET.unpack(ticket)[0])

    def streaming(self) -> AbstractContextManager[Any]:
        """On the stream of the copies."""
        return torch.cuda.stream(self._stream)


class Arrivals:
    """Fits the engine's way in: tensors that `NcclIn` has asked for."""

    def __init__(self, device: torch.device, hidden: int, dtype: torch.dtype) -> None:
        self._device = device
        self._hidden = hidden
        self._dtype = dtype
        self._numbers = itertools.count()
        self._coming: dict[int, tuple[Tensor, Any]] = {}

    def expect(self, tokens: int, receive: Callable[[Tensor], Any]) -> memoryview:
        """A ticket for so many tokens; `receive` asks for them and returns the work to wait for."""
        there = torch.empty(tokens, self._hidden, dtype=self._dtype, device=self._device)
        number = next(self._numbers)
        self._coming[number] = there, receive(there)
        return memoryview(_TICKET.pack(number, tokens))

    def take(self, ticket: memoryview) -> Tensor:
        """The tensor, which the current stream waits for."""
        there, work = self._coming.pop(_TICKET.unpack(ticket)[0])
        work.wait()
        return there


class NcclOut:
    """HiddenOut for tickets. `link` carries what NCCL does not; `host` is where the next rank can reach this one."""

    def __init__(self, link: HiddenOut, departures: Departures, host: str, make: MakeGroup | None = None) -> None:
        self._link = link
        self._departures = departures
        self._make = make or nccl_group
        self._group: Any = None
        self._sent: deque[tuple[Any, Tensor]] = deque()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        port = self._listener.getsockname()[1]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=self._listener.detach()
        )
        link.send(GREETING, memoryview(f"{port} {host}".encode()))

    def send(self, header: bytes, payload: memoryview) -> None:
        """Announce a tensor, then hand it to NCCL. It is kept until it has been sent."""
        tensor = self._departures.take(payload)
        self._link.send(header, payload)
        if self._group is None:
            self._group = self._make(self._store, SENDER)
        with self._departures.streaming():
            self._sent.append((self._group.send([tensor], RECEIVER, 0), tensor))
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()

    def close(self) -> None:
        """The next rank may be gone: nothing waits for it."""
        if self._group is not None:
            self._group.abort()
        self._link.close()


class NcclIn:
    """HiddenIn for tickets."""

    def __init__(self, link: HiddenIn, arrivals: Arrivals, make: MakeGroup | None = None) -> None:
        self._link = link
        self._arrivals = arrivals
        self._make = make or nccl_group
        self._group: Any = None
        self.socket = link.socket
        self._malformed = 0

    @property
    def malformed(self) -> int:
        """Messages that could not be understood."""
        return self._malformed + self._link.malformed

    def receive(self) -> tuple[bytes, memoryview] | None:
        """The next header, and a ticket for its tensor, which is on its way. Malformed messages are counted."""
        while (received := self._link.receive()) is not None:
            header, payload = received[0], bytes(received[1])
            self._link.release()
            if header == GREETING:
                self._meet(payload)
            elif self._group is None or len(payload) != _TICKET.size:
                self._malformed += 1
            else:
                tokens = _TICKET.unpack(payload)[1]
                return header, self._arrivals.expect(tokens, lambda there: self._group.recv([there], SENDER, 0))
        return None

    def release(self) -> None:
        """The forward has read its tensor, which is nobody's any more."""

    def close(self) -> None:
        """The rank before may be gone: nothing waits for it."""
        if self._group is not None:
            self._group.abort()
        self._link.close()

    def _meet(self, place: bytes) -> None:
        port, host = place.decode().split(" ", 1)
        if self._group is not None:
            self._group.abort()
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, int(port), is_master=False, wait_for_workers=False, timeout=PATIENCE
        )
        self._group = self._make(store, RECEIVER)


def nccl_group(store: Any, rank: int) -> Any:
    """Two ends over NCCL. The first tensor makes the connection. Raises ConfigError for a torch without NCCL."""
    if not dist.is_nccl_available():
        raise ConfigError("--hidden-link is nccl, but this torch was built without NCCL: use host")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = PATIENCE
    return dist.ProcessGroupNCCL(store, rank, 2, options)
