"""What other threads ask of the tick loop. It answers between two events, so nothing is read while it changes."""

import threading
from dataclasses import dataclass, field

from consensus.store_link import LeaderStore
from tandem.core.members import Member
from tandem.core.messages import Load
from tandem.core.rank import Rank
from tandem.runtime.drive import Drive
from tandem.runtime.health import State


@dataclass(slots=True)
class AskState:
    """One health thread's question."""

    _answer: State | None = None
    _answered: threading.Event = field(default_factory=threading.Event)

    def answer(self, drive: Drive) -> None:
        """On the tick loop's thread."""
        self._answer = describe(drive)
        self._answered.set()

    def wait(self, timeout_s: float) -> State | None:
        """The answer, or None if the tick loop did not give one in time."""
        return self._answer if self._answered.wait(timeout_s) else None


@dataclass(slots=True)
class NewMembers:
    """The registry's members have been read again."""

    members: list[Member]

    def answer(self, drive: Drive) -> None:
        """On the tick loop's thread."""
        drive.links.peers.on_members(self.members)
        drive.watch_peers()


def load_of(rank: Rank) -> Load:
    """How full rank 0's group is."""
    role = rank.scheduler.role
    _, waiting, running = role.lengths()[:3]
    return Load(rank.place.group, waiting, running, role.pool.available, rank.scheduler.controls.draining)


def describe(drive: Drive) -> State:
    """One rank, for people and for tests."""
    rank, links = drive.rank, drive.links
    scheduler = rank.scheduler
    rooms, waiting, running = scheduler.role.lengths()[:3]
    return {
        "ready": True,
        "group": rank.place.group,
        "rank": rank.place.rank,
        "size": rank.place.size,
        "epoch": rank.place.epoch,
        "tick": scheduler.tick,
        "digest": f"{scheduler.digest:016x}",
        "awaiting": rank.awaiting(),
        "rooms": rooms,
        "paused": scheduler.controls.paused,
        "draining": scheduler.controls.draining,
        "waiting": waiting,
        "running": running,
        "pages": {"total": scheduler.role.pool.num_pages, **scheduler.role.pool.counts()},
        "ticks_in_flight": len(scheduler.flights),
        "sessions": rank.courier.open_rooms(),
        "facts": len(links.store),
        "unacked_ms": links.store.unacked_age_ms(),
        "stale_messages": rank.stale + (links.payloads.stale if links.payloads is not None else 0),
        "strangers": links.store.strangers if isinstance(links.store, LeaderStore) else 0,
        "routers": {"undelivered": links.routers.undelivered, "malformed": links.routers.malformed}
        if links.routers is not None
        else None,
        "degraded": links.degraded or None,
        "fencing": links.peers.fencing(),
        "peer_messages": {**links.peers.counts, "unheard": links.peers.unheard},
        "refused_peers": [f"{group} rank {number}: {why}" for (group, number), why in links.peers.refusals().items()],
    }
