"""What a rank computes with and keeps and moves KV with, before it knows anybody."""

from dataclasses import dataclass

import msgspec

from kvtransfer.transports.faulty import with_faults
from kvtransfer.transports.mooncake import MooncakeTransport
from kvtransfer.transports.nowhere import NoTransport
from tandem.core.config import Limits, RankOptions, RoleName
from tandem.engine.load import build_engine, resolve_dtype
from tandem.engine.memory import HostPages
from tandem.engine.model import fingerprint, read_shape
from tandem.ports import Engine, HostCopies, Transport


@dataclass(frozen=True, slots=True)
class Resources:
    """An engine with an empty page pool, registered with a transport, and host memory for who must make room."""

    engine: Engine
    host: HostCopies
    transport: Transport
    fingerprint: str
    limits: Limits  # with the model's context


def load_resources(options: RankOptions) -> Resources:
    """Load this stage's layers and make its pages writable for peers. Raises ConfigError.

    The transport is left to the process's end: destroying Mooncake's engine takes up to seconds and gains nothing then.
    """
    shape = read_shape(options.model)
    dtype = resolve_dtype(options.dtype)
    engine = build_engine(
        shape,
        options.group.layers(options.rank),
        page_size=options.limits.page_size,
        num_pages=options.limits.num_pages,
        dtype=dtype,
        threads=options.threads,
    )
    transport = _transport(options)
    region = engine.memory.region
    transport.register(region.base, region.bytes)
    return Resources(
        engine,
        HostPages(engine.memory, _host_pages(options)),
        transport,
        fingerprint(shape, dtype, options.limits.page_size),
        msgspec.structs.replace(options.limits, context=shape.context),
    )


def _host_pages(options: RankOptions) -> int:
    """Only decode copies pages to host memory."""
    return options.limits.host_pages if options.group.role is RoleName.DECODE else 0


def _transport(options: RankOptions) -> Transport:
    """Mooncake, which loads its library only now, unless there is nobody to write to."""
    if options.group.role is RoleName.COLOCATED:
        return NoTransport()
    return with_faults(
        MooncakeTransport(options.bind or "127.0.0.1", options.transport_protocol, options.transport_device)
    )
