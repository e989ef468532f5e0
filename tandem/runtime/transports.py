"""What a rank moves KV with: a transport for each group of peers, all made in the way that the options ask for."""

from functools import partial

from kvtransfer.edges import Edges
from kvtransfer.transports.faulty import with_faults
from kvtransfer.transports.mooncake import MooncakeTransport
from kvtransfer.transports.nowhere import NoTransport
from tandem.core.config import RankOptions, RoleName
from tandem.ports import Memory, Transport


def open_edges(options: RankOptions, memory: Memory) -> Edges:
    """Transports with the page pool registered.

    Mooncake loads its library only now, unless there is nobody to write to. Raises ConfigError.
    """
    if options.group.role is RoleName.COLOCATED:
        return Edges(NoTransport)
    return Edges(with_faults(partial(_start, options, memory)))


def _start(options: RankOptions, memory: Memory) -> Transport:
    host = options.bind or "127.0.0.1"
    transport = MooncakeTransport(host, options.transport_protocol, options.transport_device)
    transport.register(memory.region.base, memory.region.bytes + len(memory.tail))
    return transport
