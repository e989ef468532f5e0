"""What an operator chooses. One Topology describes a cluster; `tandem up` turns it into argument lists."""

import enum
from typing import Literal

import msgspec

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, RankId

MAX_ROOMS = 1024
"""Requests that one group holds at once, in all states; one more is refused as `queue_full`."""
SLOT_ROWS = 8
MAX_REQUESTS = 1024
"""Requests that one router has at the groups at once; one more waits in its queue."""
QUEUE_SIZE = 1024
"""Requests that wait in one router; one more is refused as `queue_full`."""
MAX_CHOICES = 128
"""Of one answer. Each has a request id of its own, so many from the answer's on."""
QUEUE_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 600.0
"""For one request, from its first byte to its last."""
DRAIN_S = 30.0
"""For what is open, once a process has been told to end."""
RETRIES_MAX = 3
"""Twice for a failed transfer and once for a damaged one is all that a request gets."""
QUIESCE_MS = 10_000
CHECKSUM_SAMPLE = 64
MAX_TICK_TOKENS = 2**20
"""Of a prompt, or of all prompts, in one tick: no group is ever told to take more."""

AUTO = "auto"
"""Instead of a partition: layers are split so that the slowest stage is as fast as can be."""


class RoleName(enum.Enum):
    """The kinds of group; also the name of the command that starts a rank."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"  # both in one ring, without a transfer


EngineName = Literal["auto", "cpu", "torch", "flashinfer", "fake"]
"""What computes a stage: native code on the CPU, PyTorch on the CPU, FlashInfer on a GPU; fake is for fake models.

auto is `cpu` where it can be had for the model, else `torch`."""
HiddenLink = Literal["host", "nccl"]
"""How hidden states go from stage to stage: through host memory, or from GPU to GPU."""
PolicyName = Literal["cache_aware", "round_robin", "power_of_two"]
"""How a router chooses among the groups that can take a request."""
TransferConsensus = Literal["store", "ring"]
"""How a group agrees on landed, failed and quiet transfers: by the PPConsensusStore, or by two-pass ring votes."""
TransferBackend = Literal["mooncake", "shm"]
"""What moves the KV cache: Mooncake's engine over RDMA or TCP, or copies between processes of one host."""


class Limits(msgspec.Struct, frozen=True):
    """What the scheduler of either role must respect. Equal on all ranks of a group."""

    page_size: int = 16  # tokens
    num_pages: int = 4096
    context: int = 8192  # tokens, from the model
    chunked_prefill_size: int = 512  # tokens of one prompt per tick
    max_prefill_tokens: int = 1024  # tokens of all prompts per tick
    async_depth: int = 0  # decode: slots beyond one per stage
    slot_rows: int = SLOT_ROWS  # decode: requests that one slot computes in the time that one of them takes
    max_rooms: int = MAX_ROOMS
    host_pages: int = 1024  # decode: pages of host memory for requests that had to make room
    prefix_cache: bool = True
    dynamic_chunking: bool = False  # prefill: rank 0 fits chunk sizes so that all chunks take the same time
    transfer_consensus: TransferConsensus = "store"
    quiesce_ms: int = QUIESCE_MS  # how long pages wait for the peer's word before it is cut off
    checksum_sample: int = CHECKSUM_SAMPLE  # one of so many blocks is compared at both ends; 0: none

    @property
    def most_rooms(self) -> int:
        """Requests that a group holds at once with those that it had given up and that come back."""
        return 2 * self.max_rooms


class Group(msgspec.Struct, frozen=True):
    """One pipeline-parallel ring."""

    role: RoleName
    name: str
    partition: tuple[int, ...]  # layers of each stage

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return len(self.partition)

    def layers(self, rank: RankId) -> tuple[LayerId, LayerId]:
        """First layer and one past the last layer of a stage."""
        first = sum(self.partition[:rank])
        return LayerId(first), LayerId(first + self.partition[rank])


class Frontend(msgspec.Struct, frozen=True, kw_only=True):
    """How a router serves its clients. Its flags have the names of the fields."""

    policy: PolicyName = "cache_aware"
    max_concurrent_requests: int = MAX_REQUESTS
    queue_size: int = QUEUE_SIZE  # 0: who cannot be served at once is refused
    queue_timeout_secs: float = QUEUE_TIMEOUT_S
    request_timeout_secs: float = REQUEST_TIMEOUT_S
    retry_max_retries: int = RETRIES_MAX  # of one request, after a hand-over failed
    cb_failure_threshold: int = 5  # failures in a row that open a breaker
    cb_timeout_duration_secs: float = 30.0  # until its trial
    max_payload_size: int = 4 * 1024 * 1024  # bytes
    api_keys_file: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    otlp_traces_endpoint: str = ""  # empty: no traces


class Topology(msgspec.Struct, frozen=True):
    """A whole cluster: what `tandem up` starts and what a chart renders."""

    cluster: str
    model: str
    groups: tuple[Group, ...]
    limits: Limits
    dtype: str = "auto"
    engine: EngineName = "auto"
    transfer_backend: TransferBackend = "mooncake"
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 0
    registry_url: str = ""  # empty: an embedded server
    frontend: Frontend = Frontend()

    def ranks(self) -> list[tuple[Group, RankId]]:
        """Every rank of every group, in the order to start them."""
        return [(group, RankId(rank)) for group in self.groups for rank in range(group.size)]


def split_layers(layers: int, parts: int) -> tuple[int, ...]:
    """Cut `layers` into `parts` as evenly as possible, the longer stages first: the last one also has the lm_head."""
    check_parts(layers, parts)
    share, rest = divmod(layers, parts)
    return tuple(share + (part < rest) for part in range(parts))


def check_parts(layers: int, parts: int) -> None:
    """Raises ConfigError when not every stage can have a layer."""
    if not 1 <= parts <= layers:
        raise ConfigError(f"pp-size is {parts}: it must be from 1 to the model's {layers} layers")


def parse_partition(text: str, layers: int, parts: int, flag: str) -> tuple[int, ...]:
    """Read `10,10,10`. Raises ConfigError that names the flag when the numbers do not add up."""
    try:
        partition = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} is {text!r}: give layers per stage, such as 10,10,10, or {AUTO}") from None
    if len(partition) != parts or sum(partition) != layers or min(partition) < 1:
        raise ConfigError(
            f"{flag} is {text!r}: give {parts} positive numbers that add up to the model's {layers} layers"
        )
    return partition


BOUNDS = {
    "page_size": ("page-size", 1, 4096),
    "num_pages": ("num-pages", 1, 2**24),
    "chunked_prefill_size": ("chunked-prefill-size", 1, MAX_TICK_TOKENS),
    "max_prefill_tokens": ("max-prefill-tokens", 1, MAX_TICK_TOKENS),
    "slot_rows": ("slot-rows", 1, 2**20),
    "async_depth": ("pp-async-batch-depth", 0, 1024),
    "max_rooms": ("max-rooms", 1, 2**20),
    "host_pages": ("host-pages", 0, 2**24),
    "quiesce_ms": ("quiesce-ms", 100, 3_600_000),
    "checksum_sample": ("checksum-sample", 0, 2**20),
}
"""The flag of each limit that an operator sets, the least it may be and the most: far above what is of use, and far
below what a message or the memory for it could not hold."""


def check_limits(limits: Limits) -> Limits:
    """Raises ConfigError for the first limit that cannot work; returns them otherwise."""
    for field, (flag, least, most) in BOUNDS.items():
        given: int = getattr(limits, field)
        if not least <= given <= most:
            raise ConfigError(f"--{flag} is {given}: give {least} to {most}")
    return limits


class RankOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one rank's process is told; the command line of `tandem prefill` and `tandem decode`."""

    cluster: str
    group: Group
    rank: RankId
    model: str
    served_model_name: str
    limits: Limits
    registry_url: str  # empty: `peers` are asked
    run_dir: str  # private directory for unix sockets and shared memory
    bind: str = ""  # host to bind, or empty: unix sockets in run_dir
    dtype: str = "auto"
    engine: EngineName = "auto"
    hidden_link: HiddenLink = "host"
    threads: int = 1
    secret_file: str = ""
    http_host: str = "127.0.0.1"
    http_port: int = 0
    peers: str = ""  # host:port of every rank's HTTP port; empty: there is a registry
    transfer_backend: TransferBackend = "mooncake"
    transport_protocol: Literal["tcp", "rdma"] = "tcp"
    transport_device: str = ""
    transport_fallback: Literal["none", "tcp"] = "none"  # when the protocol is not to be had
    dump_dir: str = ""  # where flight records go; empty: below the user's state directory
    record_dir: str = ""  # where whole epochs are recorded; empty: they are not
    drain_s: float = DRAIN_S
    supervised: bool = False  # exit when standard input closes
    timer_scale: float = 1.0  # multiplies failure timers


def check_transport(options: RankOptions) -> None:
    """Raises ConfigError for an order to Mooncake that would do nothing, as it moves no KV or uses no RDMA."""
    if options.transfer_backend == "mooncake":
        check_device(options.transport_protocol, options.transport_device)
        return
    for field, default in (("transport_protocol", "tcp"), ("transport_device", "")):
        if getattr(options, field) != default:
            raise ConfigError(
                f"--{field.replace('_', '-')} has no meaning with --disaggregation-transfer-backend "
                f"{options.transfer_backend}: leave it out, or use mooncake"
            )


def check_device(protocol: str, device: str) -> None:
    """Raises ConfigError for an RDMA device where nobody uses RDMA."""
    if device and protocol != "rdma":
        raise ConfigError(f"--transport-device is {device!r}: give it only with --transport-protocol rdma")


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the router's process is told; the command line of `tandem router`."""

    cluster: str
    model: str
    served_model_name: str
    registry_url: str  # empty: `peers` are asked
    peers: str = ""  # host:port of every rank's HTTP port
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 0
    secret_file: str = ""
    frontend: Frontend = Frontend()
    api_key: str = ""  # the one key of all clients
    admin_api_key: str = ""
    drain_s: float = DRAIN_S
    supervised: bool = False
    timer_scale: float = 1.0  # multiplies failure timers
