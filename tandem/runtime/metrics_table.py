"""All metrics that Tandem's processes serve: names, kinds, labels with their bounds, buckets, and what they tell.

Pure data: `docs/metrics.md` is made from it, processes can serve nothing else, and alerts are tested against it.
"""

from dataclasses import dataclass, field
from typing import Literal

from tandem.core.config import RoleName
from tandem.core.ends import EndKind
from tandem.core.plan import Question

PREFIX = "tandem_"

Kind = Literal["counter", "gauge", "histogram"]
ROUTER, PREFILL, DECODE, COLOCATED = "router", *(role.value for role in RoleName)
RANKS = (PREFILL, DECODE, COLOCATED)
PAIR = (PREFILL, DECODE)
RECEIVES = (DECODE,)
COMPUTES = (PREFILL, COLOCATED)

REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
TICK_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TRANSFER_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


@dataclass(frozen=True)
class Label:
    """Either all values that it can have, or in words what keeps them from growing."""

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""


@dataclass(frozen=True)
class Metric:
    """`name` is without the prefix. `where`: the kinds of process that serve it. Buckets are in the metric's unit."""

    name: str
    kind: Kind
    help: str
    where: tuple[str, ...]
    labels: tuple[Label, ...] = field(default=())
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus knows it."""
        return PREFIX + self.name


OTHER = "other"
STATUSES = (
    *("200", "202", "400", "401", "403", "404", "405", "408", "413", "415", "429"),
    *("499", "500", "502", "503", "504", OTHER),
)
GROUP_STATES = ("missing", "forming", "other_model", "connecting", "draining", "usable", "silent", "lost")
SHED = (
    *("queue_full", "queue_timeout", "tenant_limit", "too_many_requests", "overloaded", "draining", "shutting_down"),
    *("no_prefill", "no_decode", "no_colocated", "incompatible_pair"),
)
QUEUES = ("grammar", "bootstrap", "pages", "transfer", "host")
PLACES = ("queue", "prefill", "transfer", "decode", "host")
FENCES = tuple(kind.value for kind in EndKind)
PAGES = ("free", "owned", "cached", "quarantined")
PHASES = ("bootstrap", "alloc", "queue", "post", "wire", "commit")
TRANSFERS = ("bootstrapping", "moving", "held")
FAILURES = ("write_settled", "write_unsettled", "peer", "checksum", "elsewhere")
TRANSPORTS = ("mooncake-tcp", "mooncake-rdma", "shm")
BOOLEANS = ("false", "true")

_GROUP = Label("group", bound="the groups that the registry has shown in the last ten minutes")
_ROLE = Label("role", tuple(role.value for role in RoleName))
_ROUTER_EDGE = Label("edge", bound="one per group, and one per pair of prefill and decode group, such as p0->d0")
_RANK_EDGE = Label("edge", bound="one per rank of a decode group that this rank writes to, such as p0.1->d0.0")
OWN_LABELS = (
    Label("group", bound="the rank's own"),
    _ROLE,
    Label("rank", bound="the rank's own position in the ring"),
)
"""On every metric of a rank."""


def _router(name: str, kind: Kind, text: str, *labels: Label, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(name, kind, text, (ROUTER,), labels, buckets)


def _rank(
    name: str, kind: Kind, text: str, *labels: Label, where: tuple[str, ...] = RANKS, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name, kind, text, where, (*OWN_LABELS, *labels), buckets)


ROUTER_METRICS = (
    _router(
        "http_requests_total",
        "counter",
        "Answers on the port for clients, by HTTP status; 499: the client left before there was any.",
        Label("code", STATUSES),
    ),
    _router(
        "request_duration_seconds",
        "histogram",
        "Of a completion or chat request, from its head to the last byte of its answer, whatever that was.",
        buckets=REQUEST_S,
    ),
    _router(
        "time_to_first_token_seconds",
        "histogram",
        "From a request's whole body to the first token of any of its choices. Observed when the request ends.",
        buckets=FIRST_TOKEN_S,
    ),
    _router(
        "inter_token_latency_seconds",
        "histogram",
        "Between two tokens of one choice, as they reach the router; a migration is in it.",
        buckets=NEXT_TOKEN_S,
    ),
    _router(
        "prompt_tokens_total",
        "counter",
        "Tokens of the prompts that were sent to groups; a later attempt is not counted.",
    ),
    _router("generated_tokens_total", "counter", "Tokens of answers, of requests that have ended in whatever way."),
    _router("router_queue_depth", "gauge", "Requests that wait in the router for room at the groups."),
    _router(
        "worker_state",
        "gauge",
        "1 for the state that a group is in, as this router sees it, 0 for all others.",
        _GROUP,
        _ROLE,
        Label("state", GROUP_STATES),
    ),
    _router(
        "breaker_state",
        "gauge",
        "Of a group or an edge: 0 closed, 1 one request is on trial, 2 open.",
        _ROUTER_EDGE,
    ),
    _router("retries_total", "counter", "Times that a request was computed anew because its hand-over had failed."),
    _router("migrations_total", "counter", "Times that a request went on elsewhere because it had lost a group."),
    _router(
        "shed_total",
        "counter",
        "Requests that were refused before any of their answer, for want of room or of groups.",
        Label("reason", SHED),
    ),
    _router("disconnect_aborts_total", "counter", "Requests that were given up because their client had left."),
    _router("registry_up", "gauge", "1 if the last reading of the registry went well."),
    _router("registry_stale_seconds", "gauge", "Since the registry was last read well."),
)

SCHEDULER_METRICS = (
    _rank("tick_total", "counter", "Ticks that this rank has stepped, over all epochs of the process."),
    _rank(
        "tick_duration_seconds",
        "histogram",
        "The engine's time for a tick that has rows, on this stage.",
        buckets=TICK_S,
    ),
    _rank("ring_lag_ticks", "gauge", "Ticks that this rank has planned and whose forward has not ended here."),
    _rank(
        "ring_receive_wait_seconds",
        "histogram",
        "How long a planned tick waited for the ring: rank 0 for its return, any other rank for its hidden states.",
        buckets=TICK_S,
    ),
    _rank(
        "vote_wait_seconds",
        "histogram",
        "From a question to the outcome of the ring's vote, as this rank hears of it.",
        Label("kind", tuple(question.value for question in Question)),
        buckets=TICK_S,
    ),
    _rank("store_update_age_seconds", "gauge", "Age of the oldest fact that rank 0 has not acknowledged; 0: none."),
    _rank("divergence_total", "counter", "Divergences that this rank has found: its bug, or a neighbour's."),
    _rank(
        "running_requests",
        "gauge",
        "Prefill: with chunks to compute. Decode: in a slot. Equal on all ranks of a group.",
    ),
    _rank(
        "waiting_requests",
        "gauge",
        "By what they wait for: their grammar, the peer's grants or a vote, pages, KV that is on its way, or their way "
        "back from host memory. Equal on all ranks of a group.",
        Label("queue", QUEUES),
    ),
    _rank("pages", "gauge", "Pages of the pool, of each layer. Equal on all ranks of a group.", Label("state", PAGES)),
    _rank(
        "prefix_hit_tokens_total",
        "counter",
        "Tokens of prompts that were in the cache and not computed. Equal on all ranks of a group.",
        where=COMPUTES,
    ),
    _rank(
        "retracted_total",
        "counter",
        "Times that a request gave its pages up for an older one. Equal on all ranks of a group.",
        where=RECEIVES,
    ),
    _rank(
        "aborts_total",
        "counter",
        "Requests that ended before their last token, by how far they had come. Equal on all ranks of a group.",
        Label("where", PLACES),
    ),
    _rank(
        "pipeline_bubble_seconds_total",
        "counter",
        "Seconds that this stage's engine stood still while the ring had ticks in flight.",
    ),
    _rank("epoch", "gauge", "The group's epoch; 0 while it has none."),
    _rank(
        "epoch_fences_total",
        "counter",
        "Epochs that have ended, each with the fence of what this rank had in it, by their cause.",
        Label("cause", FENCES),
    ),
)

TRANSFER_METRICS = (
    _rank("kv_bytes_total", "counter", "Bytes of KV that were written and committed.", _RANK_EDGE, where=(PREFILL,)),
    _rank(
        "kv_transfer_duration_seconds",
        "histogram",
        "Of a room, alloc: until decode had its pages and votes; bootstrap: until prefill knew on all ranks. Of a "
        "write, queue: until the peer's worker took it up; post: until the transport had it; wire: until it was over; "
        "commit: until the decode rank was told.",
        Label("phase", PHASES),
        where=PAIR,
        buckets=TRANSFER_S,
    ),
    _rank(
        "kv_transfers",
        "gauge",
        "Rooms by the state of their hand-over; held: it is over, and the peer may still touch the pages.",
        Label("state", TRANSFERS),
        where=PAIR,
    ),
    _rank(
        "kv_transfer_failures_total",
        "counter",
        "Rooms whose hand-over has failed, by what this rank has seen of it: a write that cannot land any more, one "
        "that still may, a peer that was lost or said what cannot be, or blocks that are not what was sent; "
        "elsewhere: nothing.",
        Label("reason", FAILURES),
        where=PAIR,
    ),
    _rank(
        "kv_transport_info",
        "gauge",
        "1, with what moves the KV; degraded: it is not what was asked for.",
        Label("kind", TRANSPORTS),
        Label("degraded", BOOLEANS),
        where=PAIR,
    ),
    _rank("kv_held_pages", "gauge", "Pages of ended rooms that wait for a peer group. Equal on all ranks.", where=PAIR),
    _rank("kv_oldest_hold_seconds", "gauge", "For how long the longest of them has waited; 0: none.", where=PAIR),
    _rank(
        "kv_checksum_mismatch_total",
        "counter",
        "Commits whose blocks, as they have landed here, were not what was sent.",
        where=RECEIVES,
    ),
    _rank(
        "kv_exposed_seconds",
        "histogram",
        "Of a room: from its first token until its last KV had landed on all ranks. 0: compute has hidden all of it.",
        where=RECEIVES,
        buckets=TRANSFER_S,
    ),
    _rank(
        "kv_saved_bytes_total",
        "counter",
        "Bytes of KV that need not come to this rank, as decode had the prefix cached.",
        where=RECEIVES,
    ),
)

METRICS = (*ROUTER_METRICS, *SCHEDULER_METRICS, *TRANSFER_METRICS)
BUCKETS = {metric.name: metric.buckets for metric in METRICS if metric.kind == "histogram"}


def served_by(where: str) -> tuple[Metric, ...]:
    """The metrics of one kind of process."""
    return tuple(metric for metric in METRICS if where in metric.where)
