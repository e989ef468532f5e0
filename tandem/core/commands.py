"""Command lines of single processes: the one place that writes their flags, for `tandem up` and for charts.

`tandem.cli` reads what is written here; a test holds both together, field by field.
"""

from collections.abc import Mapping

import msgspec

from tandem.core.config import DRAIN_S, Group, RankOptions, RouterOptions, Topology
from tandem.core.ids import RankId

Value = str | int | float | bool

REGISTRY_URL = "TANDEM_REGISTRY_URL"
"""The environment variable of the registry's URL: it may hold a password, and everyone can read command lines."""
API_KEY = "TANDEM_API_KEY"
ADMIN_API_KEY = "TANDEM_ADMIN_API_KEY"
"""The same for the keys of a router."""
LOADED = "LOADED"
"""What a line of a supervised rank begins with that says how many of its tensors are loaded."""


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of a topology adds to it: the places, secrets and means of the machine it runs on."""

    served_model_name: str
    registry_url: str
    run_dir: str
    secret_file: str
    threads: int = 1
    dump_dir: str = ""
    record_dir: str = ""
    timer_scale: float = 1.0
    drain_s: float = DRAIN_S
    supervised: bool = False
    api_key: str = ""
    admin_api_key: str = ""


def rank_name(group: Group, rank: RankId) -> str:
    """`p0.1`: how logs and people call one rank."""
    return f"{group.name}.{rank}"


def topology_options(topology: Topology, start: StartOptions) -> list[RankOptions]:
    """The options of every rank, in the order to start them."""
    return [
        RankOptions(
            cluster=topology.cluster,
            group=group,
            rank=rank,
            model=topology.model,
            served_model_name=start.served_model_name,
            limits=topology.limits,
            registry_url=start.registry_url,
            run_dir=start.run_dir,
            dtype=topology.dtype,
            engine=topology.engine,
            transfer_backend=topology.transfer_backend,
            threads=start.threads,
            secret_file=start.secret_file,
            dump_dir=start.dump_dir,
            record_dir=start.record_dir,
            supervised=start.supervised,
            timer_scale=start.timer_scale,
            drain_s=start.drain_s,
        )
        for group, rank in topology.ranks()
    ]


def router_options(topology: Topology, start: StartOptions) -> RouterOptions:
    """The options of the topology's router."""
    return RouterOptions(
        cluster=topology.cluster,
        model=topology.model,
        served_model_name=start.served_model_name,
        registry_url=start.registry_url,
        host=topology.host,
        port=topology.port,
        admin_port=topology.admin_port,
        secret_file=start.secret_file,
        frontend=topology.frontend,
        api_key=start.api_key,
        admin_api_key=start.admin_api_key,
        supervised=start.supervised,
        timer_scale=start.timer_scale,
        drain_s=start.drain_s,
    )


def rank_arguments(options: RankOptions) -> list[str]:
    """What follows `tandem` on a rank's command line."""
    return [options.group.role.value, *written(rank_flags(options))]


def rank_flags(options: RankOptions) -> dict[str, Value]:
    """The flags of a rank, without dashes. `limits.context` is not among them: every rank reads its model."""
    group, limits = options.group, options.limits
    return {
        "cluster": options.cluster,
        "group": group.name,
        "rank": options.rank,
        "pp-size": group.size,
        "pp-partition": ",".join(map(str, group.partition)),
        "model": options.model,
        "served-model-name": options.served_model_name,
        "dtype": options.dtype,
        "engine": options.engine,
        "hidden-link": options.hidden_link,
        "threads": options.threads,
        "page-size": limits.page_size,
        "num-pages": limits.num_pages,
        "chunked-prefill-size": limits.chunked_prefill_size,
        "max-prefill-tokens": limits.max_prefill_tokens,
        "pp-async-batch-depth": limits.async_depth,
        "slot-rows": limits.slot_rows,
        "max-rooms": limits.max_rooms,
        "host-pages": limits.host_pages,
        "no-prefix-cache": not limits.prefix_cache,
        "dynamic-chunking": limits.dynamic_chunking,
        "transfer-consensus": limits.transfer_consensus,
        "quiesce-ms": limits.quiesce_ms,
        "checksum-sample": limits.checksum_sample,
        "cluster-secret-file": options.secret_file,
        "run-dir": options.run_dir,
        "bind": options.bind,
        "http-host": options.http_host,
        "http-port": options.http_port,
        "peers": options.peers,
        "disaggregation-transfer-backend": options.transfer_backend,
        "transport-protocol": options.transport_protocol,
        "transport-device": options.transport_device,
        "transport-fallback": options.transport_fallback,
        "dump-dir": options.dump_dir,
        "record-dir": options.record_dir,
        "drain-s": options.drain_s,
        "timer-scale": options.timer_scale,
        "supervised": options.supervised,
    }


def router_arguments(options: RouterOptions) -> list[str]:
    """What follows `tandem` on the command line of a router. Keys are not on it: see `environment`."""
    return ["router", *written(router_flags(options))]


def router_flags(options: RouterOptions) -> dict[str, Value]:
    """The flags of a router, without dashes."""
    front = options.frontend
    return {
        "cluster": options.cluster,
        "model": options.model,
        "served-model-name": options.served_model_name,
        "cluster-secret-file": options.secret_file,
        "host": options.host,
        "port": options.port,
        "admin-host": options.admin_host,
        "admin-port": options.admin_port,
        "peers": options.peers,
        **{name.replace("_", "-"): getattr(front, name) for name in front.__struct_fields__},
        "drain-s": options.drain_s,
        "timer-scale": options.timer_scale,
        "supervised": options.supervised,
    }


def environment(options: RankOptions | RouterOptions) -> dict[str, str]:
    """What a process is told beside its command line."""
    told = {REGISTRY_URL: options.registry_url}
    if isinstance(options, RouterOptions):
        told |= {API_KEY: options.api_key, ADMIN_API_KEY: options.admin_api_key}  # an empty one hides ours
    return told


def written(flags: Mapping[str, Value]) -> list[str]:
    """`--name=value`, as one word: a value may be empty or begin with a dash. A switch that is off is left out."""
    words = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words.append(f"--{name}={value!r}" if isinstance(value, float) else f"--{name}={value}")
    return words
