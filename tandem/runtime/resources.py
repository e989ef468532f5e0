"""What a rank computes with and keeps and moves KV with, before it knows anybody."""

from dataclasses import dataclass

import msgspec

from kvtransfer.edges import Edges
from tandem.core.config import Limits, RankOptions, RoleName
from tandem.engine.load import build_engine, resolve_dtype
from tandem.engine.memory import HostPages
from tandem.engine.model import fingerprint, read_shape
from tandem.ports import Engine, HostCopies
from tandem.runtime.links import check_where
from tandem.runtime.transports import open_edges, uses_shm


@dataclass(frozen=True, slots=True)
class Resources:
    """An engine with an empty page pool, the transports it is registered with, and host memory for who makes room."""

    engine: Engine
    host: HostCopies
    edges: Edges
    degraded: str  # in what way KV moves worse than it was asked to
    fingerprint: str
    limits: Limits  # with the model's context


def load_resources(options: RankOptions) -> Resources:
    """Load this stage's layers and make its pages writable for peers. Raises ConfigError.

    Transports are left to the process's end: destroying Mooncake's engine takes up to seconds and gains nothing then.
    """
    if uses_shm(options):
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
        shared=uses_shm(options),
    )
    edges, degraded = open_edges(options, engine.memory)
    return Resources(
        engine,
        HostPages(engine.memory, _host_pages(options)),
        edges,
        degraded,
        fingerprint(shape, dtype, options.limits.page_size),
        msgspec.structs.replace(options.limits, context=shape.context),
    )


def _host_pages(options: RankOptions) -> int:
    """Only decode copies pages to host memory."""
    return options.limits.host_pages if options.group.role is RoleName.DECODE else 0
