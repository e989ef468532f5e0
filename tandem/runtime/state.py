"""What other threads ask of the tick loop. It answers between two events, so nothing is read while it changes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from consensus.store_link import LeaderStore
from tandem.core.ids import RequestId
from tandem.core.members import Member
from tandem.core.messages import Load
from tandem.core.rank import Rank
from tandem.runtime.drive import Drive
from tandem.runtime.health import NOT_FOUND, OK, Reply, State
from tandem.runtime.history import HeldRoom, Outlines, Tracks
from tandem.runtime.timeline import MAX_ROOMS
from tandem.runtime.witness import now_us

T = TypeVar("T")


@dataclass(slots=True)
class Question(Generic[T]):
    """One health thread's question: what `look` finds."""

    look: Callable[[Drive], T]
    _answer: T | None = None
    _answered: threading.Event = field(default_factory=threading.Event)

    def answer(self, drive: Drive) -> None:
        """On the tick loop's thread."""
        self._answer = self.look(drive)
        self._answered.set()

    def wait(self, timeout_s: float) -> T | None:
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
    controls = rank.scheduler.controls
    return Load(rank.place.group, waiting, running, role.pool.available, controls.draining, controls.paused)


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
        "held": held_rooms(drive),
        "peer_messages": {**links.peers.counts, "unheard": links.peers.unheard},
        "refused_peers": [f"{group} rank {number}: {why}" for (group, number), why in links.peers.refusals().items()],
    }


def held_rooms(drive: Drive) -> list[State]:
    """Pages held for peer groups, as rank 0 has them: ages are by its time."""
    rank, now_ms = drive.rank, drive.now_ms()
    if not rank.place.first:
        return []
    rooms = [
        HeldRoom(rank.place.group, str(held.room), held.peer, pages, now_ms - held.since_ms)
        for held, pages in rank.scheduler.role.held()
    ]
    return [msgspec.to_builtins(room) for room in rooms]


def timelines(rid: RequestId | None, since_us: int, drive: Drive) -> Reply:
    """An overview of the newest rooms that have changed since then, or all that is kept of one request."""
    place, timeline = drive.rank.place, drive.links.timeline
    who = (place.group, place.rank, timeline.role.value, now_us())
    if rid is None:
        return OK, msgspec.json.encode(Outlines(*who, timeline.outlines(since_us)))
    tracks = timeline.tracks(rid)
    if not tracks:
        error = f"no request {rid:016x} here: the last {MAX_ROOMS} are remembered"
        return NOT_FOUND, msgspec.json.encode({"error": error})
    return OK, msgspec.json.encode(Tracks(*who, tracks))
