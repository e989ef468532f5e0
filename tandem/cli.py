"""The `tandem` command. It only reads flags: what a command needs is imported when that command runs."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from tandem import flags
from tandem.core.config import (
    AUTO,
    DRAIN_S,
    MAX_ROOMS,
    Frontend,
    Group,
    Limits,
    RankOptions,
    RoleName,
    RouterOptions,
    check_limits,
)
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.requests import Sampling
from tandem.development import bench, replay, sim
from tandem.doctor.command import doctor
from tandem.operations import control, drain, kv, status, top, trace
from tandem.usage import explain

if TYPE_CHECKING:
    from tandem.local.wanted import Wanted

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
LIMITS, FRONTEND = Limits(), Frontend()
PAIR_FLAGS = (
    *("prefill_groups", "prefill_pp", "prefill_pp_partition"),
    *("decode_groups", "decode_pp", "decode_pp_partition"),
    *("host_pages", "transfer_consensus", "disaggregation_transfer_backend", "quiesce_ms", "checksum_sample"),
)
COLOCATED_FLAGS = ("groups", "pp", "pp_partition")

app = typer.Typer(
    name="tandem",
    help="Serves a large language model with prefill and decode on separate, pipeline-parallel groups.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables leave no room for sentences where lines have 80 columns
)


@app.command()
def up(
    context: typer.Context,
    model: flags.Model = "",
    served_model_name: flags.ServedName = "",
    prefill_groups: flags.Groups = 1,
    prefill_pp: flags.PpSize = 2,
    decode_groups: flags.Groups = 1,
    decode_pp: flags.PpSize = 2,
    prefill_pp_partition: flags.Partition = AUTO,
    decode_pp_partition: flags.Partition = AUTO,
    colocated: Annotated[bool, Option("--colocated", help="Prefill and decode in the same groups.")] = False,
    groups: Annotated[int, Option(min=1, max=flags.MAX_GROUPS, help="Colocated groups.")] = 1,
    pp: Annotated[int, Option(min=1, help="Stages of a colocated group, one process each.")] = 2,
    pp_partition: flags.Partition = AUTO,
    async_depth: flags.AsyncDepth = LIMITS.async_depth,
    slot_rows: flags.SlotRows = LIMITS.slot_rows,
    dtype: flags.Dtype = "auto",
    engine: flags.Engine = "auto",
    page_size: flags.PageSize = LIMITS.page_size,
    chunked_prefill_size: flags.ChunkedPrefillSize = LIMITS.chunked_prefill_size,
    max_prefill_tokens: flags.MaxPrefillTokens = LIMITS.max_prefill_tokens,
    dynamic_chunking: flags.DynamicChunking = LIMITS.dynamic_chunking,
    prefix_cache: flags.PrefixCache = LIMITS.prefix_cache,
    host_pages: flags.HostPages = LIMITS.host_pages,
    transfer_consensus: flags.TransferConsensus = LIMITS.transfer_consensus,
    quiesce_ms: flags.QuiesceMs = LIMITS.quiesce_ms,
    checksum_sample: flags.ChecksumSample = LIMITS.checksum_sample,
    disaggregation_transfer_backend: flags.TransferBackend = "mooncake",
    num_pages: Annotated[int | None, Option(min=1, help="Per group. (Default: 65,536 tokens, if they fit.)")] = None,
    host: Annotated[str, Option(help="Address to serve on.")] = "127.0.0.1",
    port: flags.Port = 8000,
    admin_port: flags.Port = 0,
    registry_url: flags.OwnRegistryUrl = "",
    policy: flags.Policy = FRONTEND.policy,
    max_concurrent_requests: flags.MaxRequests = FRONTEND.max_concurrent_requests,
    queue_size: flags.QueueSize = FRONTEND.queue_size,
    queue_timeout_secs: flags.QueueTimeout = FRONTEND.queue_timeout_secs,
    request_timeout_secs: flags.RequestTimeout = FRONTEND.request_timeout_secs,
    retry_max_retries: flags.Retries = FRONTEND.retry_max_retries,
    cb_failure_threshold: flags.FailureThreshold = FRONTEND.cb_failure_threshold,
    cb_timeout_duration_secs: flags.BreakerTimeout = FRONTEND.cb_timeout_duration_secs,
    max_payload_size: flags.PayloadSize = FRONTEND.max_payload_size,
    api_key: flags.ApiKey = "",
    api_keys_file: flags.ApiKeysFile = "",
    admin_api_key: flags.OwnAdminKey = "",
    tls_cert_path: flags.TlsCert = "",
    tls_key_path: flags.TlsKey = "",
    otlp_traces_endpoint: flags.OtlpTraces = "",
    timer_scale: flags.TimerScale = 1.0,
    drain_s: flags.DrainS = DRAIN_S,
    dump_dir: flags.DumpDir = "",
    record_dir: flags.RecordDir = "",
    threads: flags.Threads = None,
) -> int:
    """Run a whole cluster on this machine until Ctrl-C."""
    from tandem.local import cluster

    return cluster.up(wanted_cluster(context))


def wanted_cluster(context: typer.Context) -> "Wanted":
    """What the flags of `up` mean. Raises ConfigError."""
    from router.given import check_frontend
    from tandem.local.wanted import wanted_of

    given = context.params
    check_kind(context)
    flags.check_host("--host", given["host"])
    check_frontend(front := frontend_of(given), given["api_key"])
    return wanted_of(given, given["model"] or bundled_model(), limits_of(given), front)


def check_kind(context: typer.Context) -> None:
    """Raises ConfigError for a flag of `up` that is about the other kind of cluster and would do nothing."""
    colocated = context.params["colocated"]
    for name in PAIR_FLAGS if colocated else COLOCATED_FLAGS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} has no meaning {'with' if colocated else 'without'} --colocated")


def rank_command(
    context: typer.Context,
    group: Annotated[str, Option(help="Name of this rank's group, such as p0.")],
    rank: Annotated[int, Option(min=0, help="Position in the ring, from 0.")],
    pp_size: flags.PpSize,
    cluster_secret_file: flags.SecretFile,
    run_dir: Annotated[str, Option(help="Private directory for unix sockets and shared memory; made if need be.")],
    registry_url: flags.RegistryUrl = "",
    peers: flags.Peers = "",
    bind: Annotated[str, Option(help="Address for other ranks to connect to. (Default: unix sockets.)")] = "",
    cluster: flags.Cluster = "default",
    pp_partition: flags.Partition = AUTO,
    model: flags.Model = "",
    served_model_name: flags.ServedName = "",
    dtype: flags.Dtype = "auto",
    engine: flags.Engine = "auto",
    hidden_link: flags.HiddenLink = "host",
    threads: Annotated[
        int,
        Option(min=1, max=flags.MAX_THREADS, help="That compute, at most; stages with one --run-dir share the cores."),
    ] = 1,
    page_size: flags.PageSize = LIMITS.page_size,
    num_pages: Annotated[int, Option(min=1, help="Pages of each layer.")] = LIMITS.num_pages,
    chunked_prefill_size: flags.ChunkedPrefillSize = LIMITS.chunked_prefill_size,
    max_prefill_tokens: flags.MaxPrefillTokens = LIMITS.max_prefill_tokens,
    async_depth: flags.AsyncDepth = LIMITS.async_depth,
    slot_rows: flags.SlotRows = LIMITS.slot_rows,
    max_rooms: Annotated[int, Option(min=1, help="Requests that a group holds at once.")] = MAX_ROOMS,
    host_pages: flags.HostPages = LIMITS.host_pages,
    prefix_cache: flags.PrefixCache = LIMITS.prefix_cache,
    dynamic_chunking: flags.DynamicChunking = LIMITS.dynamic_chunking,
    transfer_consensus: flags.TransferConsensus = LIMITS.transfer_consensus,
    quiesce_ms: flags.QuiesceMs = LIMITS.quiesce_ms,
    checksum_sample: flags.ChecksumSample = LIMITS.checksum_sample,
    http_host: Annotated[str, Option(help="Address of /livez, /readyz, /state and /timelines.")] = "127.0.0.1",
    http_port: flags.Port = 0,
    disaggregation_transfer_backend: flags.TransferBackend = "mooncake",
    transport_protocol: flags.TransportProtocol = "tcp",
    transport_device: flags.TransportDevice = "",
    transport_fallback: flags.TransportFallback = "none",
    dump_dir: flags.DumpDir = "",
    record_dir: flags.RecordDir = "",
    drain_s: flags.DrainS = DRAIN_S,
    timer_scale: flags.TimerScale = 1.0,
    supervised: flags.Supervised = False,
) -> int:
    """Run one rank of a group: one stage of its pipeline."""
    return serve_rank(rank_options(RoleName(context.command.name), context.params))


for role in RoleName:
    app.command(role.value, help=f"Run one rank of a {role.value} group: one stage of its pipeline.")(rank_command)


def rank_options(role: RoleName, given: Mapping[str, Any]) -> RankOptions:
    """What the flags of `rank_command` mean; their names are its parameters'. Raises ConfigError."""
    if given["transport_fallback"] == given["transport_protocol"]:
        raise ConfigError("--transport-fallback is tcp: give it only with --transport-protocol rdma")
    model, rank, pp_size = given["model"] or bundled_model(), given["rank"], given["pp_size"]
    if rank >= pp_size:
        raise ConfigError(f"--rank is {rank}: give 0 to {pp_size - 1}, as --pp-size is {pp_size}")
    named = {name: given[name] for name in RankOptions.__struct_fields__ if name in given}  # flags have their names
    meant = {
        "group": Group(role, given["group"], layers_of(model, role, pp_size, given["pp_partition"])),
        "rank": RankId(rank),
        "model": model,
        "served_model_name": given["served_model_name"] or served_name(model),
        "limits": check_limits(limits_of(given)),
        "run_dir": os.path.abspath(given["run_dir"]),
        "secret_file": given["cluster_secret_file"],
        "transfer_backend": given["disaggregation_transfer_backend"],
    }
    return RankOptions(**named | meant)


def limits_of(given: Mapping[str, Any]) -> Limits:
    """The limits among a command's flags, which have their names; what is not given has its default."""
    return Limits(**{name: given[name] for name in Limits.__struct_fields__ if given.get(name) is not None})


def layers_of(model: str, role: RoleName, pp_size: int, given: str) -> tuple[int, ...]:
    """Layers of each stage. Raises ConfigError that names the flag."""
    from tandem.engine.model import partition_of, read_shape

    return partition_of(read_shape(model), role, pp_size, given, "--pp-partition")


def serve_rank(options: RankOptions) -> int:
    """Hand over to the role's main."""
    from tandem.runtime.places import check_file, check_folder

    flags.check_rank(options)
    check_file("--cluster-secret-file", options.secret_file)
    check_folder("--run-dir", options.run_dir)
    check_folder("--dump-dir", options.dump_dir)
    check_folder("--record-dir", options.record_dir)
    match options.group.role:
        case RoleName.PREFILL:
            from prefill.main import serve
        case RoleName.DECODE:
            from decode.main import serve
        case RoleName.COLOCATED:
            from colocated.main import serve
    return serve(options)


@app.command()
def router(
    context: typer.Context,
    cluster_secret_file: flags.SecretFile,
    registry_url: flags.RegistryUrl = "",
    peers: flags.Peers = "",
    cluster: flags.Cluster = "default",
    model: flags.Model = "",
    served_model_name: flags.ServedName = "",
    host: Annotated[str, Option(help="Address to serve on.")] = "127.0.0.1",
    port: flags.Port = 8000,
    admin_host: Annotated[str, Option(help="Address of the admin port.")] = "127.0.0.1",
    admin_port: flags.Port = 0,
    policy: flags.Policy = FRONTEND.policy,
    max_concurrent_requests: flags.MaxRequests = FRONTEND.max_concurrent_requests,
    queue_size: flags.QueueSize = FRONTEND.queue_size,
    queue_timeout_secs: flags.QueueTimeout = FRONTEND.queue_timeout_secs,
    request_timeout_secs: flags.RequestTimeout = FRONTEND.request_timeout_secs,
    retry_max_retries: flags.Retries = FRONTEND.retry_max_retries,
    cb_failure_threshold: flags.FailureThreshold = FRONTEND.cb_failure_threshold,
    cb_timeout_duration_secs: flags.BreakerTimeout = FRONTEND.cb_timeout_duration_secs,
    max_payload_size: flags.PayloadSize = FRONTEND.max_payload_size,
    api_key: flags.ApiKey = "",
    api_keys_file: flags.ApiKeysFile = "",
    admin_api_key: flags.OwnAdminKey = "",
    tls_cert_path: flags.TlsCert = "",
    tls_key_path: flags.TlsKey = "",
    otlp_traces_endpoint: flags.OtlpTraces = "",
    drain_s: flags.DrainS = DRAIN_S,
    timer_scale: flags.TimerScale = 1.0,
    supervised: flags.Supervised = False,
) -> int:
    """Run a router: the OpenAI API in front of the groups."""
    return serve_router(router_options_of(context.params))


def router_options_of(given: Mapping[str, Any]) -> RouterOptions:
    """What the flags of `router` mean; most have the names of the fields."""
    model = given["model"] or bundled_model()
    named = {name: given[name] for name in RouterOptions.__struct_fields__ if name in given}
    meant = {
        "model": model,
        "served_model_name": given["served_model_name"] or served_name(model),
        "secret_file": given["cluster_secret_file"],
        "frontend": frontend_of(given),
    }
    return RouterOptions(**named | meant)


def frontend_of(given: Mapping[str, Any]) -> Frontend:
    """What a command's flags say about serving clients; they have the names of the fields."""
    return Frontend(**{name: given[name] for name in Frontend.__struct_fields__})


def serve_router(options: RouterOptions) -> int:
    """Hand over to the router's main."""
    from router.given import check_frontend
    from router.main import serve
    from tandem.runtime.places import check_file

    flags.check_router(options)
    check_file("--cluster-secret-file", options.secret_file)
    check_frontend(options.frontend, options.api_key)
    return serve(options)


app.command()(status)
app.command()(top)
app.command()(control)
app.command()(drain)
app.command()(trace)
app.add_typer(kv, name="kv")


@app.command()
def generate(
    prompt: Annotated[str, Argument(help="What to say to the model.")],
    model: flags.Model = "",
    max_tokens: Annotated[int, Option(min=1, help="Tokens to generate, at most.")] = 256,
    temperature: Annotated[float, Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this sum.")] = 1.0,
    seed: Annotated[int, Option(help="Of the draws.")] = 0,
    raw: Annotated[bool, Option("--raw", help="Continue the prompt, without the model's chat template.")] = False,
    dtype: flags.Dtype = "auto",
    engine: flags.Engine = "auto",
    threads: Annotated[int | None, Option(min=1, max=flags.MAX_THREADS, help="(Default: the cores.)")] = None,
) -> int:
    """Run the model in this one process, without a cluster."""
    from tandem.generate import GenerateOptions
    from tandem.generate import generate as run

    options = GenerateOptions(
        prompt=prompt,
        model=model or bundled_model(),
        max_tokens=max_tokens,
        sampling=Sampling(temperature, top_p, seed),
        raw=raw,
        dtype=dtype,
        engine=engine,
        threads=threads or len(os.sched_getaffinity(0)),
    )
    return run(options)


app.command()(sim)
app.command()(replay)
app.command()(bench)
app.command()(doctor)


def bundled_model() -> str:
    """The path of the model that comes with the installation. Raises ConfigError."""
    from tandem.engine.model import bundled_model_path

    return str(bundled_model_path())


def served_name(model: str) -> str:
    """What clients call the model, if the operator does not say."""
    from tandem.local.wanted import served_name

    return served_name(model)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. What the operator got wrong is one line on standard error."""
    try:
        status = app(list(arguments) or ["--help"], prog_name="tandem", standalone_mode=False)
    except typer.TyperException as error:
        return refuse(explain(error, arguments))
    except ConfigError as error:
        return refuse(str(error))
    except typer.Abort:  # Ctrl-C, where a command does not mean anything else by it
        return EXIT_INTERRUPTED
    return int(status or 0)


def refuse(text: str) -> int:
    """Say what was wrong."""
    print(f"tandem: {text}", file=sys.stderr)
    return EXIT_USAGE


def main() -> None:
    """The `tandem` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
