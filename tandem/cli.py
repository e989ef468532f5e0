"""The `tandem` command. It only reads flags: what a command needs is imported when that command runs."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from tandem import flags
from tandem.core.config import (
    DRAIN_S,
    MAX_REQUESTS,
    MAX_ROOMS,
    REQUEST_TIMEOUT_S,
    Group,
    Limits,
    RankOptions,
    RoleName,
    RouterOptions,
    check_limits,
    parse_partition,
    split_layers,
)
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.requests import Sampling
from tandem.doctor.command import doctor
from tandem.operations import control, kv, trace
from tandem.usage import explain

EXIT_USAGE = 2
LIMITS = Limits()
PAIR_FLAGS = (
    *("prefill_groups", "prefill_pp", "prefill_pp_partition"),
    *("decode_groups", "decode_pp", "decode_pp_partition"),
    *("host_pages", "transfer_consensus", "disaggregation_transfer_backend", "quiesce_ms", "checksum_sample"),
)
COLOCATED_FLAGS = ("groups", "pp", "pp_partition")

app = typer.Typer(
    name="tandem",
    help="Serves a large language model with prefill and decode on separate, pipeline-parallel groups.",
    add_completion=False,
    pretty_exceptions_enable=False,
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
    prefill_pp_partition: flags.Partition = "",
    decode_pp_partition: flags.Partition = "",
    colocated: Annotated[bool, Option("--colocated", help="Prefill and decode in the same groups.")] = False,
    groups: Annotated[int, Option(min=1, max=flags.MAX_GROUPS, help="Colocated groups.")] = 1,
    pp: Annotated[int, Option(min=1, help="Stages of a colocated group, one process each.")] = 2,
    pp_partition: flags.Partition = "",
    async_depth: flags.AsyncDepth = LIMITS.async_depth,
    dtype: flags.Dtype = "auto",
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
    max_concurrent_requests: flags.MaxRequests = MAX_REQUESTS,
    timer_scale: flags.TimerScale = 1.0,
    drain_s: flags.DrainS = DRAIN_S,
    dump_dir: flags.DumpDir = "",
    record_dir: flags.RecordDir = "",
    threads: flags.Threads = None,
) -> int:
    """Run a whole cluster on this machine until Ctrl-C."""
    from tandem.local import cluster
    from tandem.local.wanted import wanted_of

    check_kind(context)
    flags.check_host("--host", host)
    return cluster.up(wanted_of(context.params, model or bundled_model(), limits_of(context.params)))


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
    registry_url: flags.RegistryUrl,
    cluster_secret_file: flags.SecretFile,
    run_dir: Annotated[str, Option(help="Private directory (mode 0700) for unix sockets and shared memory.")],
    bind: Annotated[str, Option(help="Address for other ranks to connect to. (Default: unix sockets.)")] = "",
    cluster: flags.Cluster = "default",
    pp_partition: flags.Partition = "",
    model: flags.Model = "",
    served_model_name: flags.ServedName = "",
    dtype: flags.Dtype = "auto",
    threads: flags.Threads = None,
    page_size: flags.PageSize = LIMITS.page_size,
    num_pages: Annotated[int, Option(min=1, help="Pages of each layer.")] = LIMITS.num_pages,
    chunked_prefill_size: flags.ChunkedPrefillSize = LIMITS.chunked_prefill_size,
    max_prefill_tokens: flags.MaxPrefillTokens = LIMITS.max_prefill_tokens,
    async_depth: flags.AsyncDepth = LIMITS.async_depth,
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
        "group": Group(role, given["group"], partition_of(model, pp_size, given["pp_partition"])),
        "rank": RankId(rank),
        "model": model,
        "served_model_name": given["served_model_name"] or served_name(model),
        "limits": check_limits(limits_of(given)),
        "run_dir": os.path.abspath(given["run_dir"]),
        "threads": given["threads"] or 1,
        "secret_file": given["cluster_secret_file"],
        "transfer_backend": given["disaggregation_transfer_backend"],
    }
    return RankOptions(**named | meant)


def limits_of(given: Mapping[str, Any]) -> Limits:
    """The limits among a command's flags, which have their names; what is not given has its default."""
    return Limits(**{name: given[name] for name in Limits.__struct_fields__ if given.get(name) is not None})


def partition_of(model: str, pp_size: int, text: str) -> tuple[int, ...]:
    """Layers of each stage. Raises ConfigError that names the flag."""
    from tandem.engine.model import read_shape

    layers = read_shape(model).layers
    return parse_partition(text, layers, pp_size, "--pp-partition") if text else split_layers(layers, pp_size)


def serve_rank(options: RankOptions) -> int:
    """Hand over to the role's main."""
    from tandem.runtime.places import check_file, check_folder

    flags.check_rank(options)
    check_file("--cluster-secret-file", options.secret_file)
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
    registry_url: flags.RegistryUrl,
    cluster_secret_file: flags.SecretFile,
    cluster: flags.Cluster = "default",
    model: flags.Model = "",
    served_model_name: flags.ServedName = "",
    host: Annotated[str, Option(help="Address to serve on.")] = "127.0.0.1",
    port: flags.Port = 8000,
    admin_host: Annotated[str, Option(help="Address of the admin port.")] = "127.0.0.1",
    admin_port: flags.Port = 0,
    request_timeout: Annotated[float, Option(min=0.1, max=86400, help="Seconds for one request.")] = REQUEST_TIMEOUT_S,
    max_concurrent_requests: flags.MaxRequests = MAX_REQUESTS,
    drain_s: flags.DrainS = DRAIN_S,
    timer_scale: flags.TimerScale = 1.0,
    supervised: flags.Supervised = False,
) -> int:
    """Run a router: the OpenAI API in front of the groups."""
    options = RouterOptions(
        cluster=cluster,
        model=model or bundled_model(),
        served_model_name=served_model_name or served_name(model or bundled_model()),
        registry_url=registry_url,
        host=host,
        port=port,
        admin_host=admin_host,
        admin_port=admin_port,
        secret_file=cluster_secret_file,
        request_timeout_s=request_timeout,
        max_concurrent_requests=max_concurrent_requests,
        drain_s=drain_s,
        supervised=supervised,
        timer_scale=timer_scale,
    )
    return serve_router(options)


def serve_router(options: RouterOptions) -> int:
    """Hand over to the router's main."""
    from router.main import serve
    from tandem.runtime.places import check_file

    flags.check_router(options)
    check_file("--cluster-secret-file", options.secret_file)
    return serve(options)


app.command()(control)
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
        threads=threads or len(os.sched_getaffinity(0)),
    )
    return run(options)


@app.command()
def sim(
    seeds: Annotated[int, Option(min=1, max=10**9, help="How many.")] = 100,
    first_seed: Annotated[int, Option(min=0, help="Where to begin.")] = 1,
    seed: Annotated[int | None, Option(min=0, help="Run this one only.")] = None,
    show_hash: Annotated[bool, Option("--hash", help="Print the hash of everything that happened, last.")] = False,
    tell: Annotated[bool, Option("--tell", help="Print what every rank takes and sends, in words.")] = False,
    only: Annotated[str, Option(help="With these requests, such as r3,r7. (Default: all.)")] = "",
    without: Annotated[str, Option(help="Without these kinds of faults, such as stalls,aborts.")] = "",
    ranks: Annotated[str, Option(help="Sizes of the prefill and of the decode group, such as 2,1.")] = "",
    pairs: Annotated[int, Option(min=1, max=4, help="Groups of each role; any two that fit serve a request.")] = 1,
    jobs: Annotated[int, Option(min=1, max=256, help="Processes that share the seeds.")] = 1,
) -> int:
    """Run the real scheduler in virtual time, with random requests and faults. A failing seed is made smaller."""
    from tandem.simulate import parse_variant, run

    wanted = range(first_seed, first_seed + seeds) if seed is None else range(seed, seed + 1)
    return run(wanted, parse_variant(only, without, ranks, pairs), show_hash=show_hash, tell=tell, jobs=jobs)


@app.command()
def replay(
    file: Annotated[Path, Argument(help="A flight record: a rank's dump, or its file in --record-dir.")],
    other: Annotated[Path | None, Argument(help="That of another rank: show where the two part.")] = None,
    to: Annotated[int | None, Option(min=0, help="The last tick to re-execute. (Default: the record's last.)")] = None,
) -> int:
    """Re-execute what a rank has recorded, and compare the digest of every tick."""
    from tandem.replay import compare
    from tandem.replay import replay as run

    return run(file, to) if other is None else compare(file, other, to)


@app.command()
def bench(
    name: Annotated[str, Argument(help="Which one. (Default: list them.)")] = "",
    json_file: Annotated[Path | None, Option("--json", help="Write the rows to this file, too.")] = None,
    every: Annotated[bool, Option("--all", help="Run all of them.")] = False,
    quick: Annotated[bool, Option("--quick", help="Few and short repeats: to see that it works.")] = False,
    seed: Annotated[int, Option(help="Of the random prompts.")] = 1,
) -> int:
    """Measure against a limit or a peer in the same run."""
    from bench.run import Settings, run

    return run(name, Settings(quick=quick, seed=seed), every=every, json_file=json_file)


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
