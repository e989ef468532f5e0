"""One end of a pair: what the caller does itself, and what the listener does when it is asked."""

import secrets
import socket
import time
from collections.abc import Mapping, Sequence

from kvtransfer.transports.blocks import Block
from kvtransfer.transports.mooncake import MooncakeTransport, Protocol
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.ids import RankId
from tandem.core.messages import Hello
from tandem.doctor import raw
from tandem.doctor.known import Known
from tandem.doctor.words import Card, Moved, Outcome, Port

SEED_BYTES = 16
CONNECT_S = 10.0
WRITE_S = 30.0
"""Looked at between calls: one that has begun may take as long again."""
MEASURE_S = 1.0
OPEN_PORTS = "open the ports 15000 to 17000, from which Mooncake picks (MC_MIN_RPC_PORT, MC_MAX_RPC_PORT)"


class End:
    """Its transport and its memory, once it has met the other end. Every call has a deadline."""

    def __init__(
        self, host: str, protocol: Protocol, device: str, versions: Mapping[str, str], ports: tuple[int, int]
    ) -> None:
        seed = secrets.token_bytes(SEED_BYTES)
        self._known = Known(seed)
        self._transport: MooncakeTransport | None = None
        self._peer: Card | None = None
        trouble = ""
        try:
            self._transport = MooncakeTransport(host, protocol, device)
            self._transport.register(self._known.region.base, self._known.region.bytes)
        except ConfigError as error:
            self._transport, trouble = None, str(error)
        self.card = Card(host, socket.gethostname(), dict(versions), ports, seed, self._hello(host), trouble)

    def _hello(self, host: str) -> Hello | None:
        """This end as a peer of the other's transport."""
        if self._transport is None:
            return None
        return Hello(
            group=host,
            rank=RankId(0),
            size=1,
            incarnation=secrets.randbits(62),
            fingerprint="",
            transport=self._transport.kind,
            endpoint=self._transport.endpoint,
            region=self._known.region,
        )

    @property
    def peer(self) -> Card:
        """The other end."""
        assert self._peer is not None, "they have not met"
        return self._peer

    def meet(self, peer: Card) -> None:
        """From now on the other end is known."""
        self._peer = peer

    def open_port(self) -> Port:
        """For one raw connection."""
        try:
            return raw.Sink(self.card.host).port
        except OSError as error:
            return Port(0, b"", f"no port of {self.card.host} can be bound: {error}")

    def send_raw(self, port: Port) -> Moved:
        """To the other end's port."""
        return raw.send(self.peer.host, port)

    def write_known(self) -> Outcome:
        """Connect, then write the pattern to the other end."""
        try:
            transport, peer = self._both()
        except ConnectionError as error:
            return Outcome(str(error))
        try:
            transport.connect(peer, CONNECT_S)
        except ConnectionError as error:
            return Outcome(f"{error}; {OPEN_PORTS}")
        return Outcome(write(transport, peer, self._known.scattered(self.card.seed, peer.region)))

    def check_known(self) -> Outcome:
        """Compare what the other end has written."""
        return Outcome(self._known.compare(self.peer.seed))

    def write_large(self) -> Moved:
        """Write large blocks, for a second or once."""
        try:
            transport, peer = self._both()
        except ConnectionError as error:
            return Moved(detail=str(error))
        blocks = self._known.large(peer.region)
        begin, moved = time.monotonic(), 0
        while time.monotonic() < begin + MEASURE_S:
            if detail := write(transport, peer, blocks):
                return Moved(detail=detail)
            moved += sum(length for _, _, length in blocks)
        return Moved(moved, time.monotonic() - begin)

    def _both(self) -> tuple[MooncakeTransport, Hello]:
        """This end's transport and whom it writes to. Raises ConnectionError that says who has none, and why."""
        if self._transport is None:
            raise ConnectionError(f"{self.card.host} has no transport: {self.card.trouble}")
        if self.peer.hello is None:
            raise ConnectionError(f"{self.peer.host} has no transport: {self.peer.trouble}")
        return self._transport, self.peer.hello


def write(transport: MooncakeTransport, peer: Hello, blocks: Sequence[Block]) -> str:
    """What went wrong."""
    written = transport.write(peer, blocks, WRITE_S)
    if written is Written.OK:
        return ""
    return f"the write to {peer.endpoint} ended as {written.value}: see what Mooncake says on standard error"
