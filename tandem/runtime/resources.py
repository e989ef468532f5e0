"""What a rank computes with and keeps and moves KV with, before it knows anybody."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from kvtransfer.transports.faulty import with_faults
from kvtransfer.transports.mooncake import MooncakeTransport
from kvtransfer.transports.nowhere import NoTransport
from kvtransfer.transports.shm import ShmTransport
from tandem.core.config import Limits, RankOptions, RoleName
from tandem.engine.load import build_engine, resolve_dtype
from tandem.engine.memory import HostPages
from tandem.engine.model import fingerprint, read_shape
from tandem.ports import Engine, HostCopies, Memory, Transport
from tandem.runtime.links import check_where


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
    if _uses_shm(options):
        check_where(options.run_dir)
    shape = read_shape(options.model)
    dtype = resolve_dtype(options.dtype)
    engine = build_engine(
        shape,
        options.group.layers(options.rank),
        page_size=options.limits.page_size,
        num_pages=options.limits.num_pages,
        dtype=dtype,
        threads=options.threads,
        shared=_uses_shm(options),
    )
    transport = transports(options, engine.memory)()
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


def transports(options: RankOptions, memory: Memory) -> Callable[[], Transport]:
    """Makes transports for this rank's pages, each with an endpoint of its own. Mooncake loads its library only then.

    A call raises ConfigError.
    """
    if options.group.role is RoleName.COLOCATED:
        return NoTransport
    if not _uses_shm(options):
        host, protocol, device = options.bind or "127.0.0.1", options.transport_protocol, options.transport_device
        return lambda: with_faults(MooncakeTransport(host, protocol, device))
    memfd, numbers = memory.memfd, itertools.count()
    assert memfd is not None, "shm has been chosen, so the pool is shared"
    name = f"kv-{options.group.name}-{options.rank}"
    return lambda: with_faults(ShmTransport(options.run_dir, f"{name}-{next(numbers)}", memfd))


def _uses_shm(options: RankOptions) -> bool:
    return options.transfer_backend == "shm" and options.group.role is not RoleName.COLOCATED
