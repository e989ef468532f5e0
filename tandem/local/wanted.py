"""What `tandem up` was asked for, and the topology that it means on this machine."""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tandem.core.config import (
    AUTO,
    DRAIN_S,
    EngineName,
    Frontend,
    Group,
    Limits,
    RoleName,
    Topology,
    TransferBackend,
    check_limits,
)
from tandem.core.errors import ConfigError
from tandem.core.requests import pages_for
from tandem.engine.load import choose, default_num_pages
from tandem.engine.model import partition_of, read_shape
from tandem.engine.shape import ModelShape

POOL_TOKENS = 65_536
"""What a group's pages hold by default, if the machine has the memory."""
MEMORY_SHARE = 0.5
"""Of the memory now available, for the pages of all groups."""
PREFIX = {RoleName.PREFILL: "p", RoleName.DECODE: "d", RoleName.COLOCATED: "c"}
FLAG = {RoleName.PREFILL: "--prefill-pp", RoleName.DECODE: "--decode-pp", RoleName.COLOCATED: "--pp"}
QUANTISATION = re.compile(r"[.-](?:I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one role."""

    role: RoleName
    groups: int
    pp_size: int
    partition: str = AUTO


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `tandem up`. None: a default that depends on the model and the machine."""

    model: str
    rings: tuple[Ring, ...]
    limits: Limits
    num_pages: int | None = None
    served_model_name: str = ""
    dtype: str = "auto"
    engine: EngineName = "auto"
    transfer_backend: TransferBackend = "mooncake"
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 0
    registry_url: str = ""
    frontend: Frontend = Frontend()
    api_key: str = ""
    admin_api_key: str = ""
    timer_scale: float = 1.0
    drain_s: float = DRAIN_S
    dump_dir: str = ""
    record_dir: str = ""
    threads: int | None = None


def topology_of(wanted: Wanted) -> Topology:
    """What to start. Raises ConfigError that names the flag."""
    shape = read_shape(wanted.model)
    groups = tuple(group for ring in wanted.rings for group in ring_groups(ring, shape))
    page_size = check_limits(wanted.limits).page_size
    dtype = choose(shape, wanted.dtype, wanted.engine, page_size).dtype
    num_pages = wanted.num_pages if wanted.num_pages is not None else local_pages(shape, dtype, page_size, len(groups))
    return Topology(
        cluster=f"up-{secrets.token_hex(4)}",  # an external registry may hold others
        model=wanted.model,
        groups=groups,
        limits=check_limits(msgspec.structs.replace(wanted.limits, num_pages=num_pages, context=shape.context)),
        dtype=wanted.dtype,
        engine=wanted.engine,
        transfer_backend=wanted.transfer_backend,
        host=wanted.host,
        port=wanted.port,
        admin_port=wanted.admin_port,
        registry_url=wanted.registry_url,
        frontend=wanted.frontend,
    )


def wanted_of(given: Mapping[str, Any], model: str, limits: Limits, frontend: Frontend) -> Wanted:
    """What the flags of `up` mean; most have the names of the fields."""
    named = {name: given[name] for name in Wanted.__struct_fields__ if name in given}
    meant = {
        "model": model,
        "rings": rings_of(given),
        "limits": limits,
        "frontend": frontend,
        "transfer_backend": given["disaggregation_transfer_backend"],
    }
    return Wanted(**named | meant)


def rings_of(given: Mapping[str, Any]) -> tuple[Ring, ...]:
    """What the flags of `up` say about groups, by their names."""
    if given["colocated"]:
        return (
            Ring(
                role=RoleName.COLOCATED,
                groups=given["groups"],
                pp_size=given["pp"],
                partition=given["pp_partition"],
            ),
        )
    return tuple(
        Ring(
            role=role,
            groups=given[f"{role.value}_groups"],
            pp_size=given[f"{role.value}_pp"],
            partition=given[f"{role.value}_pp_partition"],
        )
        for role in (RoleName.PREFILL, RoleName.DECODE)
    )


def ring_groups(ring: Ring, shape: ModelShape) -> tuple[Group, ...]:
    """The groups of one role. Raises ConfigError that names the flag."""
    flag = FLAG[ring.role]
    if not 1 <= ring.pp_size <= shape.layers:
        raise ConfigError(f"{flag} is {ring.pp_size}: give 1 to {shape.layers}, as the model has {shape.layers} layers")
    partition = partition_of(shape, ring.role, ring.pp_size, ring.partition, f"{flag}-partition")
    return tuple(Group(ring.role, f"{PREFIX[ring.role]}{index}", partition) for index in range(ring.groups))


def local_pages(shape: ModelShape, dtype: str, page_size: int, groups: int) -> int:
    """Pages of each group: POOL_TOKENS, or what fits the memory, but at least one context."""
    fitting = default_num_pages(shape, dtype, page_size, shape.layers * groups, share=MEMORY_SHARE)
    return min(fitting, max(pages_for(POOL_TOKENS, page_size), pages_for(shape.context, page_size)))


def served_name(model: str) -> str:
    """What clients call a model: the name of its file or folder, without the quantisation."""
    name = Path(model).name.removesuffix(".gguf")
    return QUANTISATION.sub("", name) or name


def default_threads(topology: Topology, engine: str) -> int:
    """Of each rank, with this engine.

    Those of the CPU engine share the cores as they compute; threads of other engines spin, so the ranks share them out.
    """
    ranks = 1 if engine == "cpu" else sum(group.size for group in topology.groups)
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def engine_of(topology: Topology) -> str:
    """Which engine every rank will choose, on this machine. Raises ConfigError."""
    shape = read_shape(topology.model)
    return choose(shape, topology.dtype, topology.engine, topology.limits.page_size).name
