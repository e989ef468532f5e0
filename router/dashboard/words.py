"""What the dashboard is told once a second. Bounded: it grows with the groups, never with the requests."""

import msgspec

from tandem.runtime.history import HeldRoom

MOST_LIVE = 12
MOST_SLOW = 20
MOST_HELD = 50
MOST_LOSSES = 20


class RankNow(msgspec.Struct, omit_defaults=True):
    """One rank of a ring. What could not be learned is None; `cause` says why it is not ready, or not known."""

    name: str
    http: str = ""
    epoch: str = ""  # a browser cannot count as far
    engine: str = ""
    ready: bool = False
    cause: str = ""
    last_end: str = ""  # why its last epoch is over
    tick: int | None = None
    lag: int | None = None  # ticks behind the first of its ring
    in_flight: int = 0
    awaiting: str = ""  # what its tick loop cannot go on without
    degraded: str = ""  # in what way KV moves worse than it was asked to
    asked_s_ago: float | None = None


class PagesNow(msgspec.Struct):
    """Of a group's KV pool, as its lowest rank that answers has them: equal on all."""

    total: int
    free: int
    owned: int
    cached: int
    quarantined: int


class GroupNow(msgspec.Struct, omit_defaults=True):
    """One ring."""

    name: str
    role: str
    state: str
    cause: str
    size: int
    layers: int
    open: int  # requests of this router
    ranks: list[RankNow]
    fingerprint: str = ""
    heard_s_ago: float | None = None
    paused: bool = False
    waiting: int | None = None
    running: int | None = None
    pages: PagesNow | None = None


class EdgeNow(msgspec.Struct, omit_defaults=True):
    """From a prefill to a decode group; only edges that have something to tell."""

    prefill: str
    decode: str
    bytes_per_s: float = 0.0
    failures: int = 0  # attempts that failed on it, of those remembered
    breaker: str = "closed"
    breaker_failures: int = 0  # in a row


class LiveNow(msgspec.Struct):
    """An attempt whose KV is on its way, or has just come."""

    id: str
    attempt: int
    groups: dict[str, str]
    state: str
    over: bool
    prompt_tokens: int
    layers: tuple[int, int]
    bytes: int
    age_ms: float
    progress: list[float]
    """For each layer, which part of the prompt has landed; empty where that was not asked."""


class Spread(msgspec.Struct):
    """How long a phase takes."""

    phase: str
    count: int
    p50_ms: float
    p95_ms: float
    max_ms: float


class FirstTokens(msgspec.Struct):
    """Where the time to the first token goes, on average over attempts; p50 and p95 of the whole."""

    count: int
    p50_ms: float
    p95_ms: float
    parts_ms: dict[str, float]


class SlowNow(msgspec.Struct):
    """One of the attempts that waited longest for their first token, or failed."""

    id: str
    attempt: int
    groups: dict[str, str]
    ago_s: float
    first_token_ms: float | None
    whole_ms: float | None
    longest: str  # the phase that took most of the time to the first token
    prompt_tokens: int
    tokens: int | None
    state: str
    reason: str
    failed: bool


class HeldNow(HeldRoom):
    """Pages lent to a peer that may still touch them. `stranded`: for longer than the quiesce time."""

    stranded: bool = False


class LossNow(msgspec.Struct):
    """A group was lost."""

    ago_s: float
    group: str
    cause: str


class RouterNow(msgspec.Struct):
    """This router. `why` says what keeps it from taking requests."""

    state: str
    why: str
    open: int
    queued: int
    queue_size: int
    coming: int
    migrated: int
    quarantined: int
    requests_per_s: float


class Snapshot(msgspec.Struct):
    """Everything on the page. `at_us` is the router's wall clock; ages are as of then."""

    at_us: int
    model: str
    version: str
    router: RouterNow
    groups: list[GroupNow]
    edges: list[EdgeNow]
    live: list[LiveNow]
    live_count: int
    phases: list[Spread]
    first_tokens: FirstTokens
    slow: list[SlowNow]
    held: list[HeldNow]
    held_pages: int
    losses: list[LossNow]
    remembered: int  # attempts that the figures are of
