"""What a rank's metrics tell of this moment, read in the tick loop between two events."""

from collections import Counter
from collections.abc import Iterator

from tandem.core.config import Group, RoleName
from tandem.core.ids import RankId
from tandem.core.rank import Rank
from tandem.runtime.drive import Drive
from tandem.runtime.exposition import Exposition, Gauge
from tandem.runtime.metrics_table import QUEUES, TRANSFERS, served_by
from tandem.runtime.tally import Tally, seconds

WAITING: dict[RoleName, dict[str, str]] = {
    RoleName.PREFILL: {
        "compiling": "grammar",
        "granted": "grammar",
        "bootstrapping": "bootstrap",
        "waiting": "pages",
    },
    RoleName.DECODE: {
        "compiling": "grammar",
        "asking": "bootstrap",
        "queued": "pages",
        "transferring": "transfer",
        "retracting": "host",
        "backing up": "host",
        "retracted": "host",
        "resuming": "host",
    },
    RoleName.COLOCATED: {"compiling": "grammar", "queued": "pages"},
}
"""What a request waits for, by its state."""
RUNNING = {
    RoleName.PREFILL: ("running",),
    RoleName.DECODE: ("running", "restoring"),
    RoleName.COLOCATED: ("filling", "running"),
}
MOVING: dict[RoleName, dict[str, str]] = {
    RoleName.PREFILL: {
        "compiling": "bootstrapping",
        "bootstrapping": "bootstrapping",
        "running": "moving",
        "sending": "moving",
        "draining": "held",
    },
    RoleName.DECODE: {"asking": "bootstrapping", "transferring": "moving", "quarantined": "held"},
    RoleName.COLOCATED: {},
}
"""How far a request's hand-over is, by its state."""


def exposition_of(group: Group, rank: RankId, tally: Tally) -> Exposition:
    """Of the metrics of one rank."""
    own = (group.name, group.role.value, str(rank))
    return Exposition(served_by(group.role.value), tally.figures, own)


def gauges_of(drive: Drive) -> list[Gauge]:
    """Of a rank that serves."""
    rank, links = drive.rank, drive.links
    found: list[Gauge] = [
        ("epoch", (), rank.place.epoch),
        ("ring_lag_ticks", (), len(rank.in_hand())),
        ("store_update_age_seconds", (), links.store.unacked_age_ms() / 1000),
        *(("pages", (state,), count) for state, count in rank.scheduler.role.pool.counts().items()),
        *_requests(rank, links.timeline.role),
    ]
    if links.timeline.role is not RoleName.COLOCATED:
        found += _transfers(drive, links.timeline.role)
    return found


def _requests(rank: Rank, role: RoleName) -> Iterator[Gauge]:
    states = Counter(rank.scheduler.role.states())
    yield "running_requests", (), sum(states[state] for state in RUNNING[role])
    for queue in QUEUES:
        yield "waiting_requests", (queue,), sum(states[state] for state, its in WAITING[role].items() if its == queue)


def _transfers(drive: Drive, role: RoleName) -> Iterator[Gauge]:
    links, now_ms = drive.links, drive.now_ms()
    states = Counter(drive.rank.scheduler.role.states())
    for moved in TRANSFERS:
        yield "kv_transfers", (moved,), sum(states[state] for state, its in MOVING[role].items() if its == moved)
    held = drive.rank.scheduler.role.held()
    yield "kv_held_pages", (), sum(pages for _, pages in held)
    # Ages are by rank 0's clock of the epoch, which began with this rank's own.
    yield "kv_oldest_hold_seconds", (), max((max(0, now_ms - one.since_ms) for one, _ in held), default=0) / 1000
    yield "kv_transport_info", (links.transport, "true" if links.degraded else "false"), 1


def gauges_without(tally: Tally, *, formed: bool) -> Iterator[Gauge]:
    """What is known without the tick loop."""
    yield "tick_total", (), tally.ticks
    yield "pipeline_bubble_seconds_total", (), seconds(tally.bubble_us)
    if not formed:
        yield "epoch", (), 0
