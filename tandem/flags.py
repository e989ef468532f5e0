"""The flags that more than one command has: what each may hold, and what its help says."""

import re
from typing import Annotated, Literal

from typer import Option

from tandem.core.commands import REGISTRY_URL
from tandem.core.config import RankOptions, RouterOptions, check_transport
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
Threads = Annotated[int | None, Option(min=1, max=MAX_THREADS, help="Of each rank. (Default: the cores, shared out.)")]
PageSize = Annotated[int, Option(min=1, help="Tokens per page of the KV cache.")]
ChunkedPrefillSize = Annotated[int, Option(min=1, help="Tokens of one prompt per tick.")]
MaxPrefillTokens = Annotated[int, Option(min=1, help="Tokens of all prompts per tick.")]
AsyncDepth = Annotated[int, Option("--pp-async-batch-depth", min=0, help="Decode batches beyond one per stage.")]
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
MaxRequests = Annotated[int, Option(min=1, help="The router answers so many at once; one more gets 429.")]
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
OwnRegistryUrl = Annotated[str, Option(envvar=REGISTRY_URL, help="An external registry. (Default: an embedded one.)")]
KnownRegistryUrl = Annotated[str, Option(envvar=REGISTRY_URL, help="Also see whether this registry answers.")]
AdminUrl = Annotated[
    str, Option(envvar="TANDEM_ADMIN_URL", help="The router's admin port, as in the READY line of `tandem up`.")
]
SecretFile = Annotated[str, Option(help="File with the secret that all processes of the cluster share.")]
Supervised = Annotated[bool, Option("--supervised", help="End when standard input closes.")]
Groups = Annotated[int, Option(min=1, max=MAX_GROUPS, help="Groups of this role.")]
PpSize = Annotated[int, Option(min=1, help="Stages, one process each.")]
Partition = Annotated[str, Option(help="Layers per stage, such as 10,10,10. (Default: even.)")]


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
