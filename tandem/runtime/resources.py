"""What lives as long as a rank's process, whatever becomes of its group: its options, its weights and its pages."""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import msgspec

from consensus.link import NOWHERE
from tandem.core.commands import LOADED
from tandem.core.config import Limits, RankOptions, RoleName
from tandem.core.ends import NO_END, End
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, Epoch
from tandem.engine.load import Chosen, build_engine, build_host_pages, choose
from tandem.engine.model import fingerprint, read_shape
from tandem.engine.shape import ModelShape
from tandem.ports import Engine, HostCopies
from tandem.runtime.links import check_where
from tandem.runtime.tally import Tally
from tandem.runtime.transports import uses_shm

log = logging.getLogger("tandem")

LOADED_LINES = 50
"""While the weights are loaded."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An engine with a page pool, and host memory for who makes room. An incarnation trusts nothing that is in them."""

    engine: Engine
    host: HostCopies
    chosen: Chosen
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
    tally: Tally

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.options.group.name} rank {self.options.rank}"


@dataclass(frozen=True, slots=True)
class Past:
    """What a process remembers of the epochs that it has outlived."""

    known: Epoch = NOWHERE  # the last one
    epochs: int = 0
    last_end: End = NO_END


def load_resources(options: RankOptions) -> Resources:
    """Load this stage's layers. Raises ConfigError."""
    if uses_shm(options):
        check_where(options.run_dir)
    shape = read_shape(options.model)
    page_size = options.limits.page_size
    chosen = choose(shape, options.dtype, options.engine, page_size)
    log.info("%s rank %d computes with %s", options.group.name, options.rank, chosen)
    with _vocabulary(options, shape):
        engine = build_engine(
            shape,
            options.group.layers(options.rank),
            page_size=page_size,
            num_pages=options.limits.num_pages,
            dtype=chosen.dtype,
            engine=chosen.name,
            threads=options.threads,
            beside=options.run_dir,
            shared=uses_shm(options),
            progress=say_loaded if options.supervised else None,
        )
    _carry_hidden(options, engine)
    return Resources(
        engine,
        build_host_pages(engine.memory, _host_pages(options)),
        chosen,
        fingerprint(shape, chosen.dtype, page_size, chosen.layout),
        msgspec.structs.replace(options.limits, context=shape.context),
    )


def _vocabulary(options: RankOptions, shape: ModelShape) -> AbstractContextManager[None]:
    """Made beside the weights where grammars are compiled, see `Rank`: the first one would wait for it."""
    if shape.is_fake or options.rank not in (LEADER, options.group.size - 1):
        return nullcontext()
    from tandem.engine.masks import made_meanwhile

    return made_meanwhile(shape)


def say_loaded(done: int, total: int) -> None:
    """To the supervisor, on standard output: so many tensors of so many, in a few lines."""
    if done * LOADED_LINES // total > (done - 1) * LOADED_LINES // total:
        print(f"{LOADED} {done} {total}", flush=True)


def _carry_hidden(options: RankOptions, engine: Engine) -> None:
    """Raises ConfigError when the engine has no tensors on a GPU."""
    if options.hidden_link == "host":
        return
    if options.engine != "flashinfer":
        raise ConfigError(f"--hidden-link is nccl, but --engine is {options.engine}: give it only with flashinfer")
    from tandem.engine.flashinfer.engine import FlashInferEngine

    assert isinstance(engine, FlashInferEngine)
    engine.use_nccl()


def _host_pages(options: RankOptions) -> int:
    """Only decode copies pages to host memory."""
    return options.limits.host_pages if options.group.role is RoleName.DECODE else 0
