"""What lives as long as a rank's process, whatever becomes of its group: its options, its weights and its pages."""

from dataclasses import dataclass

import msgspec

from consensus.link import NOWHERE
from tandem.core.config import Limits, RankOptions, RoleName
from tandem.core.ids import Epoch
from tandem.engine.load import build_engine, resolve_dtype
from tandem.engine.memory import HostPages
from tandem.engine.model import fingerprint, read_shape
from tandem.ports import Engine, HostCopies
from tandem.runtime.links import check_where
from tandem.runtime.transports import uses_shm


@dataclass(frozen=True, slots=True)
class Resources:
    """An engine with a page pool, and host memory for who makes room. An incarnation trusts nothing that is in them."""

    engine: Engine
    host: HostCopies
    fingerprint: str
    limits: Limits  # with the model's context


@dataclass(frozen=True, slots=True)
class Process:
    """What every incarnation of a rank is made from."""

    options: RankOptions
    resources: Resources
    secret: bytes
    http: str  # its own port
    boot_ms: int  # since 1970

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.options.group.name} rank {self.options.rank}"


@dataclass(frozen=True, slots=True)
class Past:
    """What a process remembers of the epochs that it has outlived."""

    known: Epoch = NOWHERE  # the last one
    epochs: int = 0
    last_end: str = ""


def load_resources(options: RankOptions) -> Resources:
    """Load this stage's layers. Raises ConfigError."""
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
    return Resources(
        engine,
        HostPages(engine.memory, _host_pages(options)),
        fingerprint(shape, dtype, options.limits.page_size),
        msgspec.structs.replace(options.limits, context=shape.context),
    )


def _host_pages(options: RankOptions) -> int:
    """Only decode copies pages to host memory."""
    return options.limits.host_pages if options.group.role is RoleName.DECODE else 0
