"""A whole cluster in virtual time: the production Rank and Scheduler, an engine per rank, and nothing else is real."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.assembly import WINDOW_PER_STAGE, build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Effect
from tandem.core.errors import Divergence
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.messages import Hello
from tandem.ports import Engine
from tandem.sim.client import Client
from tandem.sim.clock import Action, Channel, Clock, Span, between, stream
from tandem.sim.faults import Fault, Swarm
from tandem.sim.node import Node
from tandem.sim.router import Router
from tandem.sim.routes import Route
from tandem.sim.story import tell
from tandem.sim.ticks import Flooded, Ticks

EPOCH = Epoch(1)
MOST_EVENTS = 2_000_000
"""A run that has not come to rest by then never will."""
MOST_UNDER_WAY = 2_000
"""Messages under way on one channel: production's links hold a few thousand at most."""
SLOWER, SLOW_SHARE = 50, 0.2
"""Of the slow links: how much slower they are, and which share of all links they make up."""

EngineFactory = Callable[[Group, RankId, Limits], Engine]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take."""

    layer_us: Span = (20, 200)
    message_us: Span = (5, 400)
    write_us: Span = (20, 2_000)
    handshake_us: Span = (0, 3_000)
    page_us: Span = (5, 500)  # to copy all layers of a page to host memory or back


STEADY = Pace()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What to simulate: groups, their limits, how long things take."""

    groups: tuple[Group, ...]
    limits: Limits
    pace: Pace = STEADY


class World:
    """Runs a cluster and checks after every event what must hold at every step."""

    def __init__(
        self, seed: int, cluster: Cluster, engines: EngineFactory, client: Client, swarm: Swarm | None = None
    ) -> None:
        self.seed = seed
        self.clock = Clock()
        self.client = client
        self.pace = cluster.pace
        self.swarm = swarm if swarm is not None else Swarm(seed)
        self.swarm.on_strike = lambda kind: self.say(kind.value)
        self.unsettled: dict[Room, Route] = {}  # a write between these groups has ended, and may still land
        self.tell: Callable[[str], None] | None = None  # is given the run in words
        self.watchers: list[Callable[[Node], None]] = []  # are called when a rank 0 has stepped
        self._hash = hashlib.blake2b(digest_size=8)
        self.ticks = Ticks(self._hash)
        self._cluster = cluster
        self.router = Router(self, client, self._hash.update)
        self._channels: dict[tuple[str, str, str], Channel] = {}
        self._nodes = {
            (group.name, RankId(rank)): self._node(group, RankId(rank), engines)
            for group in cluster.groups
            for rank in range(group.size)
        }
        self._introduce()

    def _node(self, group: Group, rank: RankId, engines: EngineFactory) -> Node:
        limits = self._cluster.limits
        engine = engines(group, rank, limits)
        hello = Hello(group.name, rank, group.size, 1, "sim", "sim", "", engine.memory.region)
        return Node(self, build_rank(group, rank, EPOCH, limits), engine, hello, limits.page_size)

    def _introduce(self) -> None:
        """Every prefill rank meets every decode rank, at its own time."""
        rng = stream(self.seed, "handshakes")
        sides = [self.ranks_of(role) for role in (RoleName.PREFILL, RoleName.DECODE)]
        for ones, others in (sides, reversed(sides)):
            for one in ones:
                for other in others:
                    met = partial(one.on, PeerOpened(other.hello))
                    self.clock.after(between(rng, self.pace.handshake_us), met)

    def ranks_of(self, role: RoleName) -> list[Node]:
        """All ranks of all groups of one kind."""
        groups = [group.name for group in self._cluster.groups if group.role is role]
        return [node for node in self.nodes if node.rank.place.group in groups]

    def part(self, one: Node, other: Node, delays_us: Span, gone_us: int) -> None:
        """Two ranks of different groups lose each other, each noticing at its own time, and meet again after that.

        What was under way between them still arrives.
        """
        for node, peer, delay_us in ((one, other, delays_us[0]), (other, one, delays_us[1])):
            place = peer.rank.place
            self.clock.after(delay_us, partial(node.on, PeerLost(place.group, place.rank)))
            self.clock.after(delay_us + gone_us, partial(node.on, PeerOpened(peer.hello)))

    def node(self, group: str, rank: RankId) -> Node:
        """A rank by name."""
        return self._nodes[group, rank]

    @property
    def nodes(self) -> list[Node]:
        """All ranks."""
        return list(self._nodes.values())

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return self._cluster.groups

    # links

    def send(self, sender: Node, receiver: Node, link: str, deliver: Action) -> None:
        """Over the link of this name between two ranks: in order, with a random delay."""
        self.channel(sender.name, receiver.name, link).send(deliver)

    def channel(self, sender: str, receiver: str, link: str) -> Channel:
        """The link of this name between two that have these names."""
        key = (sender, receiver, link)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(self.clock, self._delays("/".join(key)))
        elif channel.under_way > MOST_UNDER_WAY:
            raise Flooded(f"more than {MOST_UNDER_WAY} messages are under way from {sender} to {receiver}, link {link}")
        return channel

    def _delays(self, name: str) -> Callable[[], int]:
        """Draws the delay of each message of one link."""
        rng, span, swarm = stream(self.seed, name), self.pace.message_us, self.swarm
        if swarm.stream(Fault.SLOW_LINKS, name).random() >= SLOW_SHARE:
            return lambda: between(rng, span)

        def slow() -> int:
            if not swarm.has(Fault.SLOW_LINKS):
                return between(rng, span)
            swarm.acted(Fault.SLOW_LINKS)
            return SLOWER * between(rng, span)

        return slow

    # running and checking

    def run(self, until_us: int | None = None) -> None:
        """Until nothing is left to happen, or until a time."""
        if not self.clock.run(until_us, MOST_EVENTS):
            raise Flooded(f"still busy after {MOST_EVENTS} events")

    def say(self, what: str) -> None:
        """Something happens that no rank sees as an event: a line of its own in the story."""
        if self.tell is not None:
            self.tell(f"{self.clock.now_us / 1000:6.2f} ms  ** {what}")

    def told(self, node: Node, event: Event, effects: list[Effect]) -> None:
        """A rank has taken an event."""
        if self.tell is not None:
            for line in tell(self.clock.now_us, node.name, event, effects):
                self.tell(line)

    def check_tick(self, node: Node) -> None:
        """A rank has stepped: the same ticks in the same order on all ranks, and bounded queues."""
        self.ticks.check(node.rank, node.record, self.clock.now_us)
        slots = self._slots(node)
        if len(node.rank.scheduler.flights) > slots or node.compute.waiting > slots:
            flying, waiting = len(node.rank.scheduler.flights), node.compute.waiting
            raise Flooded(f"{node.name} has {flying} ticks in flight, {waiting} jobs wait, at most {slots} may")
        if node.rank.place.first:
            for watch in self.watchers:
                watch(node)

    def check_at_rest(self) -> None:
        """Nothing is left anywhere: rooms, sessions, facts, pages. Rooms of unsettled writes are, where they were sent.

        A fence could give their pages back, but there is none yet.
        """
        for node in self.nodes:
            unsettled = [room for room, groups in self.unsettled.items() if node.rank.place.group in groups]
            rooms = len(unsettled)
            scheduler = node.rank.scheduler
            pool, size = scheduler.role.pool, node.rank.place.size
            pool.audit()
            counts = pool.counts()
            kept = sum(len(pool.writable(room)) for room in unsettled)
            left = {
                "queues": tuple(scheduler.role.lengths()) != (rooms, 0, 0),
                "held rooms": [room for room in unsettled if not pool.held(room)],
                "sessions": node.rank.courier.open_rooms() != rooms,
                "routers": set(node.routers) - set(unsettled),
                "facts": node.store.entries > rooms * (1 + size),
                "pages": pool.num_pages - counts["free"] - counts.get("cached", 0) - kept,
                "votes": len(scheduler.votes) > rooms,
                "flights": len(scheduler.flights),
                "jobs": not node.compute.idle,
                "controls": scheduler.controls.paused or scheduler.controls.draining,
            }
            if any(left.values()):
                raise Divergence(f"{node.name} is not at rest, {rooms} rooms are unsettled: {left}")

    def _slots(self, node: Node) -> int:
        """Ticks that a group may have in flight: its window, or its slots."""
        return WINDOW_PER_STAGE * node.rank.place.size + self._cluster.limits.async_depth

    @property
    def hash(self) -> str:
        """Equal for equal runs: every digest of every rank and every message to the router, in order."""
        return self._hash.hexdigest()
