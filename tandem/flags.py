"""The flags that more than one command has: what each may hold, and what its help says."""

import re
from typing import Annotated, Literal

from typer import Option

from tandem.core.commands import ADMIN_API_KEY, API_KEY, REGISTRY_URL
from tandem.core.config import RETRIES_MAX, EngineName, RankOptions, RouterOptions, check_transport
from tandem.core.config import HiddenLink as Carrying
from tandem.core.config import PolicyName as Placing
from tandem.core.config import TransferBackend as Backend
from tandem.core.config import TransferConsensus as Consensus
from tandem.core.errors import ConfigError

MAX_GROUPS = 64
MAX_THREADS = 1024
GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""It is part of keys, paths and URLs."""

Model = Annotated[str, Option(help="GGUF file or Hugging Face directory. (Default: the bundled SmolLM2-135M.)")]
ServedName = Annotated[str, Option(help="What clients call the model. (Default: the name of its file or folder.)")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], Option(help="What the model runs in.")]
Engine = Annotated[
    EngineName, Option(help="What computes a stage. auto: cpu where it can be had for the model, else torch.")
]
HiddenLink = Annotated[
    Carrying, Option(help="How hidden states go between stages. nccl: from GPU to GPU, with --engine flashinfer.")
]
Threads = Annotated[
    int | None,
    Option(
        min=1,
        max=MAX_THREADS,
        help="Of each rank, at most. (Default: the cores; other engines than cpu share them out.)",
    ),
]
PageSize = Annotated[int, Option(min=1, help="Tokens per page of the KV cache.")]
ChunkedPrefillSize = Annotated[int, Option(min=1, help="Tokens of one prompt per tick.")]
MaxPrefillTokens = Annotated[int, Option(min=1, help="Tokens of all prompts per tick.")]
AsyncDepth = Annotated[int, Option("--pp-async-batch-depth", min=0, help="Decode batches beyond one per stage.")]
SlotRows = Annotated[
    int, Option(min=1, help="Decode: so many requests share a batch before another one is begun. 1: spread them.")
]
HostPages = Annotated[
    int, Option(min=0, help="Decode: pages of host memory for requests that had to make room. 0: compute them anew.")
]
PrefixCache = Annotated[
    bool, Option("--prefix-cache/--no-prefix-cache", help="Whether requests share the pages of equal prefixes.")
]
DynamicChunking = Annotated[
    bool, Option("--dynamic-chunking", help="Prefill: fit the chunks so that all take the same time.")
]
TransferConsensus = Annotated[Consensus, Option(help="How the ranks of a group agree on the state of a transfer.")]
QuiesceMs = Annotated[
    int, Option(min=1, help="How long pages of an ended request wait for the peer group's word before it is cut off.")
]
ChecksumSample = Annotated[
    int, Option(min=0, help="One of so many blocks of KV is compared at both ends. 1: all; 0: none.")
]
TransferBackend = Annotated[
    Backend, Option(help="What moves the KV cache. shm: between processes of one host that share the run directory.")
]
TransportProtocol = Annotated[Literal["tcp", "rdma"], Option(help="How Mooncake moves the KV cache.")]
TransportDevice = Annotated[str, Option(help="RDMA device, such as mlx5_0. (Default: found by itself.)")]
TransportFallback = Annotated[
    Literal["none", "tcp"], Option(help="Instead of rdma where there is none; shown as degraded.")
]
Policy = Annotated[Placing, Option(help="How the router chooses the groups of a request.")]
MaxRequests = Annotated[int, Option(min=1, help="The router has so many at the groups at once; one more waits.")]
QueueSize = Annotated[int, Option(min=0, max=2**20, help="So many requests may wait in the router; one more gets 429.")]
QueueTimeout = Annotated[float, Option(min=0.01, max=86400, help="Seconds that a request waits at most; then 408.")]
RequestTimeout = Annotated[float, Option(min=0.1, max=86400, help="Seconds for one request, with its wait.")]
Retries = Annotated[
    int,
    Option(
        min=0,
        max=RETRIES_MAX,
        help="How often a request is computed anew after hand-overs failed; twice at most if none was damaged.",
    ),
]
FailureThreshold = Annotated[
    int, Option(min=1, max=10**6, help="Failures in a row that open the breaker of a group or pair.")
]
BreakerTimeout = Annotated[
    float, Option(min=0.1, max=86400, help="Seconds until an open breaker lets one request try.")
]
PayloadSize = Annotated[int, Option(min=1024, max=2**28, help="Bytes of a request's body, at most.")]
ApiKey = Annotated[
    str, Option(envvar=API_KEY, help="The key that clients must show. It belongs in the environment.", metavar="KEY")
]
ApiKeysFile = Annotated[str, Option(help="JSON file of tenants with the SHA-256 of their keys, and limits.")]
OwnAdminKey = Annotated[
    str, Option(envvar=ADMIN_API_KEY, help="The key of the admin port. It belongs in the environment.", metavar="KEY")
]
TlsCert = Annotated[str, Option(help="Certificate chain, PEM: clients are served over TLS.")]
TlsKey = Annotated[str, Option(help="Private key of the certificate, PEM.")]
OtlpTraces = Annotated[
    str, Option(help="OTLP/HTTP URL of a collector, such as http://h:4318/v1/traces: it gets a trace of each request.")
]
Port = Annotated[int, Option(min=0, max=65535, help="0: any free one.")]
TimerScale = Annotated[
    float, Option(min=0.01, max=1000, help="Multiplies the times after which somebody counts as failed.")
]
DrainS = Annotated[
    float, Option(min=0, max=86400, help="Seconds for open requests to finish, once the process is told to end.")
]
DumpDir = Annotated[str, Option(help="Where flight records go. (Default: below the user's state directory.)")]
RecordDir = Annotated[str, Option(help="Also record every tick of the epoch there, for `tandem replay`. It grows.")]
Cluster = Annotated[str, Option(help="Name of the cluster in the registry.")]
RegistryUrl = Annotated[
    str, Option(envvar=REGISTRY_URL, help="redis://, rediss:// or unix:// URL. A password belongs in the environment.")
]
Peers = Annotated[
    str, Option(help="Instead of a registry: host:port of every rank's HTTP port, separated by commas.", metavar="LIST")
]
OwnRegistryUrl = Annotated[str, Option(envvar=REGISTRY_URL, help="An external registry. (Default: an embedded one.)")]
KnownRegistryUrl = Annotated[str, Option(envvar=REGISTRY_URL, help="Also see whether this registry answers.")]
AdminUrl = Annotated[
    str,
    Option(
        envvar="TANDEM_ADMIN_URL", help="The router's admin port, as in the READY line of `tandem up`.", metavar="URL"
    ),
]
AdminKey = Annotated[
    str, Option(envvar=ADMIN_API_KEY, help="For an admin port that asks for a key. Set the variable.", metavar="KEY")
]
Json = Annotated[bool, Option("--json", help="One JSON object instead of what people read.")]
SecretFile = Annotated[str, Option(help="File with the secret that all processes of the cluster share.")]
Supervised = Annotated[bool, Option("--supervised", help="End when standard input closes.")]
Groups = Annotated[int, Option(min=1, max=MAX_GROUPS, help="Groups of this role.")]
PpSize = Annotated[int, Option(min=1, help="Stages, one process each.")]
Partition = Annotated[
    str, Option(help="Layers per stage, such as 10,10,10. auto: so that the slowest is as fast as can be.")
]


def check_host(flag: str, host: str) -> None:
    """Raises ConfigError for an address that was left empty: sockets take that for every interface."""
    if not host:
        raise ConfigError(f"{flag} is empty: give an address of this host, such as 127.0.0.1, or 0.0.0.0 for all")


def check_rank(options: RankOptions) -> None:
    """Raises ConfigError for what can be seen to be wrong before anything is opened."""
    if not GROUP_NAME.fullmatch(name := options.group.name):
        raise ConfigError(f"--group is {name!r}: give a letter or digit, then up to 63 of letters, digits, - _ and .")
    if not options.cluster:
        raise ConfigError("--cluster is empty: give the name that all processes of the cluster are told")
    check_host("--http-host", options.http_host)
    check_transport(options)


def check_router(options: RouterOptions) -> None:
    """Raises ConfigError for what can be seen to be wrong before anything is opened."""
    check_host("--host", options.host)
    check_host("--admin-host", options.admin_host)
