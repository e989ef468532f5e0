"""The production transport: Mooncake's transfer engine, over RDMA or TCP.

Facts this file rests on (0.3.13.post1): `initialize` ignores the protocol it is given, so the environment has to force
it; rc -1 of a write does not mean that the write has stopped; a silent peer blocks a first contact for a minute; its
two ports listen on every interface and ask nobody who they are, so only a trusted network or a NetworkPolicy guards
them, whatever host is given. A second engine in a process sees the environment of the first. What an engine knows of
an endpoint it never asks for again. Its destructor holds the GIL. Never fork after the import.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from kvtransfer.gate import Gate
from kvtransfer.transports.blocks import Block, batches, coalesce
from kvtransfer.transports.tcp_ports import hang_up, hurry, listening
from tandem.core.errors import ConfigError
from tandem.core.events import Written
from tandem.core.messages import Hello

BLOCKS_PER_CALL = 512
"""More than about 2,048 outstanding blocks per peer fail; one worker per peer has one call in flight."""
CALL_TIMEOUT_S = 30
"""A single call gives up after this and 1 s per GB. The engine accepts no less than 5."""
CLOSE_S = 75.0
"""A first contact takes up to a minute, a call half as long."""
ACCEPT_S = 1.0
"""The engine's listener looks up from `accept` this often."""
OK = 0
_RETIRED: set[int] = set()
"""Ports of engines that this process has destroyed."""

Protocol = Literal["tcp", "rdma"]
DEFAULTS = {
    "MC_LOG_LEVEL": "ERROR",  # the quietest there is; GLOG_minloglevel is overridden by it
    "MC_TRANSFER_TIMEOUT": str(CALL_TIMEOUT_S),
    "MC_TCP_STATUS_TIMEOUT_SEC": "10",  # seconds for the receiver's final word
    "MC_TCP_LANES_PER_PEER": "2",
    "MC_TCP_SLICE_SIZE": str(1 << 20),  # bytes per socket call
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "5",  # seconds
}
HARMFUL = {
    "MC_LOG_DIR": "this Mooncake wheel aborts with it",
    "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS": "with a silent peer a fence would stop the whole rank for a minute",
}
FORCE = {"tcp": "MC_FORCE_TCP", "rdma": "MC_FORCE_HCA"}
REMEDY = {
    "tcp": "name an address of this host, and leave it two free ports of 15000 to 17000",
    "rdma": "see that ibv_devices lists a device, or give --transport-protocol tcp",
}


class MooncakeTransport:
    """ports.Transport over one engine. Several threads may write, to different peers.

    `kind` names the protocol, because both ends must use the same one. Raises ConfigError if the engine cannot be
    imported or started, or does not use the protocol that was asked for.
    """

    def __init__(self, host: str, protocol: Protocol = "tcp", device: str = "") -> None:
        self.kind = f"mooncake-{protocol}"
        _prepare_environment(protocol)
        try:
            self._engine = _start_engine(host, protocol, device)
        except ConfigError:
            os.environ.pop(FORCE[protocol], None)  # somebody may ask for the other one now
            raise
        self._port: int = self._engine.get_rpc_port()
        self.endpoint = f"{host}:{self._port}"
        self._gate = Gate()
        self._probes: dict[str, _Probe] = {}
        self._lock = threading.Lock()

    def register(self, base: int, length: int) -> None:
        """Make [base, base + length) writable for peers. Raises ConfigError when refused."""
        if self._engine.batch_register_memory([base], [length]) != OK:  # register_memory would hold the GIL
            raise ConfigError(f"cannot register {length} bytes at {base:#x} with Mooncake: check `ulimit -l`")

    def connect(self, peer: Hello, deadline_s: float) -> None:
        """Probe the peer. Raises ConnectionError when it is of another kind or gives no answer within the deadline."""
        if peer.transport != self.kind:
            raise ConnectionError(f"{peer.group}/{peer.rank} uses {peer.transport}, this rank {self.kind}")
        with self._lock:  # one probe at a time per peer, so that a silent one does not pile up threads
            probe = self._probes.get(peer.endpoint)
            if probe is None or probe.ended.is_set():
                probe = self._probes[peer.endpoint] = _Probe(self._probe, peer.endpoint)
        if not probe.ended.wait(deadline_s):
            raise ConnectionError(f"{peer.endpoint} was silent for {deadline_s} s")
        if probe.rc != OK:
            raise ConnectionError(f"{peer.endpoint} cannot be reached, rc {probe.rc}")

    def write(self, peer: Hello, blocks: Sequence[Block], deadline_s: float) -> Written:
        """Write all blocks, at most BLOCKS_PER_CALL in flight. Spins in native code, without the GIL.

        The deadline is looked at between calls; a call that has begun takes up to CALL_TIMEOUT_S more. Every failed
        call is unsettled: it may still land.
        """
        if not self._gate.enter():
            return Written.FAILED_SETTLED
        try:
            return self._write(peer, blocks, time.monotonic() + deadline_s)
        finally:
            self._gate.leave()

    def _write(self, peer: Hello, blocks: Sequence[Block], end: float) -> Written:
        for batch in batches(coalesce(blocks), BLOCKS_PER_CALL):
            if time.monotonic() >= end or self._gate.shut:
                return Written.FAILED_SETTLED  # what was posted has landed, the rest never will
            sources, destinations, lengths = map(list, zip(*batch, strict=True))
            if self._engine.batch_transfer_sync_write(peer.endpoint, sources, destinations, lengths) != OK:
                return Written.FAILED_UNSETTLED
        return Written.OK

    def _probe(self, endpoint: str) -> int:
        """On the thread of a probe."""
        if not self._gate.enter():
            return -1
        try:
            rc: int = self._engine.send_probe(endpoint)
            return rc
        finally:
            self._gate.leave()

    def close(self) -> None:
        """Wait for the calls in progress, then destroy the engine. From then on nothing of peers lands here.

        Raises TimeoutError when a call is stuck.
        """
        if not self._gate.close(CLOSE_S):
            raise TimeoutError(f"a call of Mooncake at {self.endpoint} has not ended within {CLOSE_S:.0f} s")
        with self._lock:
            if self._engine is None:
                return
            before = listening()
            _hurry(self._engine)
            self._engine = None
            gone = before - listening()
            assert self._port in gone, "somebody else holds the engine"
            _RETIRED.update(gone)


class _Probe:
    """One look whether a peer answers, in a thread of its own: it blocks up to a minute when the peer is silent."""

    def __init__(self, probe: Callable[[str], int], endpoint: str) -> None:
        self.ended = threading.Event()
        self.rc = -1
        threading.Thread(target=self._run, args=(probe, endpoint), name=f"probe {endpoint}", daemon=True).start()

    def _run(self, probe: Callable[[str], int], endpoint: str) -> None:
        self.rc = probe(endpoint)
        self.ended.set()


def _prepare_environment(protocol: Protocol) -> None:
    """Before the import: our defaults where the operator has set nothing, and the protocol forced.

    Mooncake looks only whether MC_FORCE_TCP or MC_FORCE_HCA exists; TCP wins. Raises ConfigError on a contradiction.
    """
    if protocol not in FORCE:
        raise ConfigError(f"transport protocol is {protocol!r}: choose tcp or rdma")
    for name, why in HARMFUL.items():
        if name in os.environ:
            raise ConfigError(f"{name} is set: {why}; unset it")
    other = FORCE["rdma" if protocol == "tcp" else "tcp"]
    if other in os.environ:
        raise ConfigError(f"{protocol} was asked for but {other} is set: unset it, or ask for the other protocol")
    for name, value in {**DEFAULTS, FORCE[protocol]: "1"}.items():
        os.environ.setdefault(name, value)


def _start_engine(host: str, protocol: Protocol, device: str) -> Any:
    """An engine that uses the protocol, at ports where no destroyed one of this process has listened: whoever still
    writes to that one would be heard here. Raises ConfigError.
    """
    make = _import_engine()
    while True:
        before = listening()
        engine = make()
        if engine.initialize(host, "P2PHANDSHAKE", protocol, device) != OK:
            raise ConfigError(f"Mooncake cannot start on {host} with {protocol}: {REMEDY[protocol]}")
        if protocol == "rdma" and not _devices(engine):
            raise ConfigError(f"rdma was asked for but Mooncake found no RDMA device: {REMEDY[protocol]}")
        if not (listening() - before) & _RETIRED:
            return engine
        _hurry(engine)
        del engine


def _hurry(engine: Any) -> None:
    """Before it is destroyed: its destructor waits, with the GIL held, until its listener looks up from `accept` (1 s)
    or from whoever is connected (5 s). Afterwards that takes milliseconds.
    """
    port = engine.get_rpc_port()
    hurry(port, ACCEPT_S)
    hang_up(port)


def _import_engine() -> Any:
    try:
        from mooncake.engine import TransferEngine
    except ImportError as error:
        raise ConfigError(
            f"cannot import Mooncake ({error}): install mooncake-transfer-engine-non-cuda and libibverbs1 libnuma1, "
            "or mooncake-transfer-engine on a CUDA host"
        ) from None
    return TransferEngine


def _devices(engine: Any) -> list[str]:
    """The RDMA devices that the engine found: its topology lists preferred and other ones per memory location."""
    topology: dict[str, list[list[str]]] = json.loads(engine.get_local_topology())
    return [device for lists in topology.values() for names in lists for device in names]
