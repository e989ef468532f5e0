"""The `tandem` command. It only reads flags: what a command needs is imported when that command runs."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from tandem.core.commands import REGISTRY_URL
from tandem.core.config import (
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

EXIT_USAGE = 2
LIMITS = Limits()
MAX_GROUPS = 64

app = typer.Typer(
    name="tandem",
    help="Serves a large language model with prefill and decode on separate, pipeline-parallel groups.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, Option(help="GGUF file or Hugging Face directory. (Default: the bundled SmolLM2-135M.)")]
ServedName = Annotated[str, Option(help="What clients call the model. (Default: the name of its file or folder.)")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], Option(help="What the model runs in.")]
Threads = Annotated[int | None, Option(min=1, help="Of each rank. (Default: the cores, shared out.)")]
PageSize = Annotated[int, Option(min=1, help="Tokens per page of the KV cache.")]
ChunkedPrefillSize = Annotated[int, Option(min=1, help="Tokens of one prompt per tick.")]
MaxPrefillTokens = Annotated[int, Option(min=1, help="Tokens of all prompts per tick.")]
AsyncDepth = Annotated[int, Option("--pp-async-batch-depth", min=0, help="Decode batches beyond one per stage.")]
Port = Annotated[int, Option(min=0, max=65535, help="0: any free one.")]
TimerScale = Annotated[float, Option(min=0.01, help="Multiplies the times after which somebody counts as failed.")]
DumpDir = Annotated[str, Option(help="Where flight records go. (Default: below the user's state directory.)")]
Cluster = Annotated[str, Option(help="Name of the cluster in the registry.")]
RegistryUrl = Annotated[
    str, Option(envvar=REGISTRY_URL, help="redis://, rediss:// or unix:// URL. A password belongs in the environment.")
]
SecretFile = Annotated[str, Option(help="File with the secret that all processes of the cluster share.")]
Supervised = Annotated[bool, Option("--supervised", help="End when standard input closes.")]
Groups = Annotated[int, Option(min=1, max=MAX_GROUPS, help="Groups of this role.")]
PpSize = Annotated[int, Option(min=1, help="Stages, one process each.")]
Partition = Annotated[str, Option(help="Layers per stage, such as 10,10,10. (Default: even.)")]


@app.command()
def up(
    model: Model = "",
    served_model_name: ServedName = "",
    prefill_groups: Groups = 1,
    prefill_pp: PpSize = 2,
    decode_groups: Groups = 1,
    decode_pp: PpSize = 2,
    prefill_pp_partition: Partition = "",
    decode_pp_partition: Partition = "",
    async_depth: AsyncDepth = LIMITS.async_depth,
    dtype: Dtype = "auto",
    page_size: PageSize = LIMITS.page_size,
    chunked_prefill_size: ChunkedPrefillSize = LIMITS.chunked_prefill_size,
    max_prefill_tokens: MaxPrefillTokens = LIMITS.max_prefill_tokens,
    num_pages: Annotated[int | None, Option(min=1, help="Per group. (Default: 65,536 tokens, if they fit.)")] = None,
    host: Annotated[str, Option(help="Address to serve on.")] = "127.0.0.1",
    port: Port = 8000,
    admin_port: Port = 0,
    registry_url: Annotated[
        str, Option(envvar=REGISTRY_URL, help="An external registry. (Default: an embedded one.)")
    ] = "",
    timer_scale: TimerScale = 1.0,
    dump_dir: DumpDir = "",
    threads: Threads = None,
) -> int:
    """Run a whole cluster on this machine until Ctrl-C."""
    from tandem.local import cluster
    from tandem.local.wanted import Ring, Wanted

    wanted = Wanted(
        model=model or bundled_model(),
        served_model_name=served_model_name,
        prefill=Ring(groups=prefill_groups, pp_size=prefill_pp, partition=prefill_pp_partition),
        decode=Ring(groups=decode_groups, pp_size=decode_pp, partition=decode_pp_partition),
        limits=Limits(
            page_size=page_size,
            chunked_prefill_size=chunked_prefill_size,
            max_prefill_tokens=max_prefill_tokens,
            async_depth=async_depth,
        ),
        num_pages=num_pages,
        dtype=dtype,
        host=host,
        port=port,
        admin_port=admin_port,
        registry_url=registry_url,
        timer_scale=timer_scale,
        dump_dir=dump_dir,
        threads=threads,
    )
    return cluster.up(wanted)


def rank_command(
    context: typer.Context,
    group: Annotated[str, Option(help="Name of this rank's group, such as p0.")],
    rank: Annotated[int, Option(min=0, help="Position in the ring, from 0.")],
    pp_size: PpSize,
    registry_url: RegistryUrl,
    cluster_secret_file: SecretFile,
    run_dir: Annotated[str, Option(help="Private directory (mode 0700) for unix sockets and shared memory.")],
    bind: Annotated[str, Option(help="Address for other ranks to connect to. (Default: unix sockets.)")] = "",
    cluster: Cluster = "default",
    pp_partition: Partition = "",
    model: Model = "",
    served_model_name: ServedName = "",
    dtype: Dtype = "auto",
    threads: Threads = None,
    page_size: PageSize = LIMITS.page_size,
    num_pages: Annotated[int, Option(min=1, help="Pages of each layer.")] = LIMITS.num_pages,
    chunked_prefill_size: ChunkedPrefillSize = LIMITS.chunked_prefill_size,
    max_prefill_tokens: MaxPrefillTokens = LIMITS.max_prefill_tokens,
    async_depth: AsyncDepth = LIMITS.async_depth,
    max_rooms: Annotated[int, Option(min=1, help="Requests that a group holds at once.")] = MAX_ROOMS,
    http_host: Annotated[str, Option(help="Address of /livez, /readyz and /state.")] = "127.0.0.1",
    http_port: Port = 0,
    transport_protocol: Annotated[Literal["tcp", "rdma"], Option(help="How Mooncake moves the KV cache.")] = "tcp",
    transport_device: Annotated[str, Option(help="RDMA device, such as mlx5_0. (Default: found by itself.)")] = "",
    dump_dir: DumpDir = "",
    timer_scale: TimerScale = 1.0,
    supervised: Supervised = False,
) -> int:
    """Run one rank of a group: one stage of its pipeline."""
    return serve_rank(rank_options(RoleName(context.command.name), context.params))


for role in RoleName:
    app.command(role.value, help=f"Run one rank of a {role.value} group: one stage of its pipeline.")(rank_command)


def rank_options(role: RoleName, flags: Mapping[str, Any]) -> RankOptions:
    """What the flags of `rank_command` mean; their names are its parameters'. Raises ConfigError."""
    model, rank, pp_size = flags["model"] or bundled_model(), flags["rank"], flags["pp_size"]
    if rank >= pp_size:
        raise ConfigError(f"--rank is {rank}: give 0 to {pp_size - 1}, as --pp-size is {pp_size}")
    limits = Limits(
        page_size=flags["page_size"],
        num_pages=flags["num_pages"],
        chunked_prefill_size=flags["chunked_prefill_size"],
        max_prefill_tokens=flags["max_prefill_tokens"],
        async_depth=flags["async_depth"],
        max_rooms=flags["max_rooms"],
    )
    return RankOptions(
        cluster=flags["cluster"],
        group=Group(role, flags["group"], partition_of(model, pp_size, flags["pp_partition"])),
        rank=RankId(rank),
        model=model,
        served_model_name=flags["served_model_name"] or served_name(model),
        limits=check_limits(limits),
        registry_url=flags["registry_url"],
        run_dir=os.path.abspath(flags["run_dir"]),
        bind=flags["bind"],
        dtype=flags["dtype"],
        threads=flags["threads"] or 1,
        secret_file=flags["cluster_secret_file"],
        http_host=flags["http_host"],
        http_port=flags["http_port"],
        transport_protocol=flags["transport_protocol"],
        transport_device=flags["transport_device"],
        dump_dir=flags["dump_dir"],
        supervised=flags["supervised"],
        timer_scale=flags["timer_scale"],
    )


def partition_of(model: str, pp_size: int, text: str) -> tuple[int, ...]:
    """Layers of each stage. Raises ConfigError that names the flag."""
    from tandem.engine.model import read_shape

    layers = read_shape(model).layers
    return parse_partition(text, layers, pp_size, "--pp-partition") if text else split_layers(layers, pp_size)


def serve_rank(options: RankOptions) -> int:
    """Hand over to the role's main."""
    check_file("--cluster-secret-file", options.secret_file)
    match options.group.role:
        case RoleName.PREFILL:
            from prefill.main import serve
        case RoleName.DECODE:
            from decode.main import serve
    return serve(options)


@app.command()
def router(
    registry_url: RegistryUrl,
    cluster_secret_file: SecretFile,
    cluster: Cluster = "default",
    model: Model = "",
    served_model_name: ServedName = "",
    host: Annotated[str, Option(help="Address to serve on.")] = "127.0.0.1",
    port: Port = 8000,
    admin_host: Annotated[str, Option(help="Address of the admin port.")] = "127.0.0.1",
    admin_port: Port = 0,
    request_timeout: Annotated[float, Option(min=0.1, help="Seconds for one request.")] = REQUEST_TIMEOUT_S,
    max_concurrent_requests: Annotated[int, Option(min=1, help="One more is answered with 429.")] = MAX_REQUESTS,
    timer_scale: TimerScale = 1.0,
    supervised: Supervised = False,
) -> int:
    """Run a router: the OpenAI API in front of the groups."""
    model = model or bundled_model()
    options = RouterOptions(
        cluster=cluster,
        model=model,
        served_model_name=served_model_name or served_name(model),
        registry_url=registry_url,
        host=host,
        port=port,
        admin_host=admin_host,
        admin_port=admin_port,
        secret_file=cluster_secret_file,
        request_timeout_s=request_timeout,
        max_concurrent_requests=max_concurrent_requests,
        supervised=supervised,
        timer_scale=timer_scale,
    )
    return serve_router(options)


def serve_router(options: RouterOptions) -> int:
    """Hand over to the router's main."""
    check_file("--cluster-secret-file", options.secret_file)
    from router.main import serve

    return serve(options)


@app.command()
def generate(
    prompt: Annotated[str, Argument(help="What to say to the model.")],
    model: Model = "",
    max_tokens: Annotated[int, Option(min=1, help="Tokens to generate, at most.")] = 256,
    temperature: Annotated[float, Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this sum.")] = 1.0,
    seed: Annotated[int, Option(help="Of the draws.")] = 0,
    raw: Annotated[bool, Option("--raw", help="Continue the prompt, without the model's chat template.")] = False,
    dtype: Dtype = "auto",
    threads: Annotated[int | None, Option(min=1, help="(Default: the cores.)")] = None,
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
    seeds: Annotated[int, Option(min=1, help="How many.")] = 100,
    first_seed: Annotated[int, Option(min=0, help="Where to begin.")] = 1,
    seed: Annotated[int | None, Option(min=0, help="Run this one only.")] = None,
    show_hash: Annotated[bool, Option("--hash", help="Print the hash of everything that happened, last.")] = False,
    tell: Annotated[bool, Option("--tell", help="Print what every rank takes and sends, in words.")] = False,
) -> int:
    """Run the real scheduler in virtual time, with random delays and aborts."""
    from tandem.simulate import run

    wanted = range(first_seed, first_seed + seeds) if seed is None else range(seed, seed + 1)
    return run(wanted, show_hash=show_hash, tell=tell)


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


def bundled_model() -> str:
    """The path of the model that comes with the installation. Raises ConfigError."""
    from tandem.engine.model import bundled_model_path

    return str(bundled_model_path())


def served_name(model: str) -> str:
    """What clients call the model, if the operator does not say."""
    from tandem.local.wanted import served_name

    return served_name(model)


def check_file(flag: str, path: str) -> None:
    """Raises ConfigError unless the file can be read."""
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ConfigError(f"{flag} is {path!r}: it cannot be read, {error.strerror}") from None


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. What the operator got wrong is one line on standard error."""
    try:
        status = app(list(arguments) or ["--help"], prog_name="tandem", standalone_mode=False)
    except typer.TyperException as error:
        return refuse(explain(error, arguments))
    except ConfigError as error:
        return refuse(str(error))
    return int(status or 0)


def explain(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Typer's message with the value that it is about, and where to look."""
    text = error.format_message()
    if found := re.fullmatch(r"Invalid value for '(?P<flag>--[\w-]+)': (?P<fault>.*)", text, re.DOTALL):
        flag, fault = found["flag"], found["fault"]
        text = f"{flag} is {written_after(flag, arguments)!r}: {fault[:1].lower()}{fault[1:]}"
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "tandem"
    return f"{text.rstrip('.?')}; see `{where} --help`"


def written_after(flag: str, arguments: Sequence[str]) -> str:
    """The last value of a flag on the command line."""
    values = [word.removeprefix(f"{flag}=") for word in arguments if word.startswith(f"{flag}=")]
    values += [value for word, value in pairwise(arguments) if word == flag]
    return values[-1] if values else ""


def refuse(text: str) -> int:
    """Say what was wrong."""
    print(f"tandem: {text}", file=sys.stderr)
    return EXIT_USAGE


def main() -> None:
    """The `tandem` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
