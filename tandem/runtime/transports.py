"""What a rank moves KV with: a transport for each group of peers, all made in the way that the options ask for."""

import itertools
import logging
from functools import partial

from kvtransfer.edges import Edges
from kvtransfer.transports.faulty import with_faults
from kvtransfer.transports.mooncake import MooncakeTransport, Protocol
from kvtransfer.transports.nowhere import NoTransport
from kvtransfer.transports.shm import ShmTransport
from tandem.core.config import RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.ports import Memory, Transport
from tandem.runtime.links import socket_name

log = logging.getLogger("tandem")


def open_edges(options: RankOptions, memory: Memory, incarnation: int) -> tuple[Edges, str]:
    """One incarnation's transports with the page pool registered, and in what way they are worse than asked for
    (empty: they are not).

    Mooncake loads its library only now, unless there is nobody to write to. Raises ConfigError.
    """
    if options.group.role is RoleName.COLOCATED:
        return Edges(NoTransport), ""
    if uses_shm(options):
        return _shm(options, memory, incarnation), ""
    try:
        return _mooncake(options, memory, options.transport_protocol), ""
    except ConfigError as error:
        if options.transport_fallback == "none":
            raise
        degraded = f"{options.transport_fallback} is used instead of {options.transport_protocol}: {error}"
        log.warning("degraded: %s", degraded)
        return _mooncake(options, memory, options.transport_fallback), degraded


def uses_shm(options: RankOptions) -> bool:
    """Whether the page pool has to be memory that other processes can read."""
    return options.transfer_backend == "shm" and options.group.role is not RoleName.COLOCATED


def _shm(options: RankOptions, memory: Memory, incarnation: int) -> Edges:
    """Each transport has a socket of its own in the run directory."""
    memfd, numbers = memory.memfd, itertools.count()
    assert memfd is not None, "shm has been chosen, so the pool is shared"

    def start() -> Transport:
        name = socket_name(f"kv{next(numbers)}", options.group.name, options.rank, incarnation)
        return _registered(ShmTransport(options.run_dir, name, memfd), memory)

    return Edges(with_faults(start))


def _mooncake(options: RankOptions, memory: Memory, protocol: Protocol) -> Edges:
    return Edges(with_faults(partial(_start, options, memory, protocol)))


def _start(options: RankOptions, memory: Memory, protocol: Protocol) -> Transport:
    return _registered(MooncakeTransport(options.bind or "127.0.0.1", protocol, options.transport_device), memory)


def _registered(transport: Transport, memory: Memory) -> Transport:
    """With the pages and what lies behind them."""
    transport.register(memory.region.base, memory.region.bytes + len(memory.tail))
    return transport
