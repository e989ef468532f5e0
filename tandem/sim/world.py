"""A whole cluster in virtual time: the production Rank and Scheduler, an engine per rank, and nothing else is real."""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import msgspec

from tandem.assembly import WINDOW_PER_STAGE, build_rank
from tandem.core.config import Group, Limits, PolicyName, RoleName
from tandem.core.effects import Effect
from tandem.core.errors import Divergence
from tandem.core.events import Event
from tandem.core.ids import Epoch, RankId
from tandem.ports import Engine
from tandem.sim.client import Client
from tandem.sim.clock import Action, Channel, Clock, Span, between, stream
from tandem.sim.epochs import Epochs
from tandem.sim.faults import Fault, Swarm
from tandem.sim.node import Node
from tandem.sim.peer_link import Said
from tandem.sim.router import Router
from tandem.sim.story import saying, tell
from tandem.sim.ticks import Flooded, Ticks

MOST_EVENTS = 2_000_000
"""A run that has not come to rest by then never will."""
MOST_UNDER_WAY = 2_000
"""Messages under way on one channel: production's links hold a few thousand at most."""
SLOWER, SLOW_SHARE = 50, 0.2
"""Of the slow links: how much slower they are, and which share of all links they make up."""

Sequel = Callable[[Node, Node], None]
"""What comes soon after a write was given up, by its sender and its receiver."""
EngineFactory = Callable[[Group, RankId, Limits], Engine]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take."""

    layer_us: Span = (20, 200)
    message_us: Span = (5, 400)
    write_us: Span = (20, 2_000)
    handshake_us: Span = (0, 3_000)
    page_us: Span = (5, 500)  # to copy all layers of a page to host memory or back
    fence_us: Span = (100, 5_000)
    verify_us: Span = (5, 500)  # to compare the blocks of a commit
    compile_us: Span = (50, 20_000)  # a grammar


STEADY = Pace()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What to simulate: groups, their limits, how long things take."""

    groups: tuple[Group, ...]
    limits: Limits
    pace: Pace = STEADY
    quiesce_ms: int | None = None  # of decode groups, if they have another patience

    def limits_of(self, group: Group) -> Limits:
        """What one group respects."""
        if self.quiesce_ms is None or group.role is not RoleName.DECODE:
            return self.limits
        return msgspec.structs.replace(self.limits, quiesce_ms=self.quiesce_ms)


class World:
    """Runs a cluster and checks after every event what must hold at every step."""

    def __init__(
        self,
        seed: int,
        cluster: Cluster,
        engines: EngineFactory,
        client: Client,
        swarm: Swarm | None = None,
        policy: PolicyName = "round_robin",
    ) -> None:
        self.seed = seed
        self.clock = Clock()
        self.client = client
        self.pace = cluster.pace
        self.swarm = swarm if swarm is not None else Swarm(seed)
        self.epochs = Epochs(self)
        self.swarm.on_strike = lambda kind: self.say(kind.value)
        self.tell: Callable[[str], None] | None = None  # is given the run in words
        self.watchers: list[Callable[[Node], None]] = []  # are called when a rank 0 has stepped
        self.sequels: deque[Sequel] = deque()  # each to one of the next writes that are given up
        self.sessions = count(1)  # of peers
        self.incarnations = count(1)  # of ranks
        self.cuts: dict[tuple[str, str], int] = {}  # (from, to): until when nothing of one group reaches the other
        self.fences = 0  # that have begun
        self.fenced_writes = 0  # that could not land any more
        self.lost_words = 0  # that were said to a peer which had lost its session
        self._hash = hashlib.blake2b(digest_size=8)
        self.ticks = Ticks(self._hash)
        self._cluster = cluster
        self._engines = engines
        self._epochs: dict[str, Epoch] = {}
        self.router = Router(self, client, self._hash.update, policy)
        self._channels: dict[tuple[str, str, str], Channel] = {}
        self._nodes: dict[tuple[str, RankId], Node] = {}
        for group in cluster.groups:
            self.found(group.name)
        for group in cluster.groups:
            if group.role is RoleName.DECODE:
                self.introduce(group.name)
        self.router.begin()

    def found(self, name: str, lost: Sequence[RankId] = ()) -> None:
        """Form a group, or its next epoch: ranks that know nothing. But for the lost ones, engines are kept."""
        group = next(group for group in self.groups if group.name == name)
        epoch = self._epochs[name] = Epoch(self._epochs.get(name, 0) + 1)
        limits = self._cluster.limits_of(group)
        fellows = []
        for rank in map(RankId, range(group.size)):
            before = self._nodes.get((name, rank))
            engine = before.engine if before and rank not in lost else self._engines(group, rank, limits)
            fellows.append(Node(self, group, limits, build_rank(group, rank, epoch, limits), engine))
        for node in fellows:
            node.fellows = tuple(fellows)
            self._nodes[node.key] = node

    @property
    def whole(self) -> bool:
        """No group is away."""
        return self.epochs.whole

    def introduce(self, group: str) -> None:
        """It is meant to meet every rank of the other kind: decode ranks call them, each at its own time."""
        for node in self.ranks(group):
            for other in self.others(node):
                caller, called = (node, other) if node.role is RoleName.DECODE else (other, node)
                caller.peers.call(called.key)

    def ranks_of(self, role: RoleName) -> list[Node]:
        """All ranks of all groups of one kind."""
        return [node for group in self.groups if group.role is role for node in self.ranks(group.name)]

    def ranks(self, group: str) -> list[Node]:
        """All ranks of a group; none if there is no such group."""
        return [node for (name, _), node in self._nodes.items() if name == group]

    def others(self, node: Node) -> list[Node]:
        """Whom a rank exchanges KV with."""
        other = {RoleName.PREFILL: RoleName.DECODE, RoleName.DECODE: RoleName.PREFILL}.get(node.role)
        return [] if other is None else self.ranks_of(other)

    def part(self, prefill: Node, decode: Node, delays_us: Span, gone_us: int) -> None:
        """Two ranks lose each other for a while, each noticing at its own time."""
        for node, peer, delay_us in ((prefill, decode, delays_us[0]), (decode, prefill, delays_us[1])):
            node.peers.lose_after(delay_us, peer.key)
            self.clock.after(delay_us + gone_us, partial(node.take, partial(node.peers.meet_again, peer)))

    def cut_until_us(self, sender: Node, receiver: Node) -> int | None:
        """When what this rank sends reaches the other again, if it does not now."""
        until_us = self.cuts.get((sender.key[0], receiver.key[0]), 0) if self.cuts else 0
        if until_us <= self.clock.now_us:
            return None
        self.swarm.acted(Fault.ONE_WAY)
        return until_us

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

    def lose_word(self, sender: Node, group: str, word: Said) -> None:
        """What a rank has said to a peer never arrives there."""
        self.lost_words += 1
        self.say(f"what {sender.name} said to {group} is lost: {saying(word)}")

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
        """Nothing is left anywhere: rooms, sessions, facts, pages, words of a peer that are waited for."""
        if not self.whole or len(self.router.dispatch.requests):
            raise Divergence(f"{len(self.router.dispatch.requests)} requests are open, all groups there: {self.whole}")
        self.router.check_known()
        for node in self.nodes:
            scheduler = node.rank.scheduler
            pool = scheduler.role.pool
            pool.audit()
            counts = pool.counts()
            left = {
                "queues": any(scheduler.role.lengths()),
                "sessions": node.rank.courier.open_rooms(),
                "routers": len(node.routers),
                "facts": node.store.entries,
                "pages": pool.num_pages - counts["free"] - counts.get("cached", 0),
                "votes": len(scheduler.votes),
                "flights": len(scheduler.flights),
                "log-probabilities": node.rank.untold,
                "jobs": not node.compute.idle,
                "strangers": [peer.name for peer in self.others(node) if node.peers.known(*peer.key) is None],
                "controls": scheduler.controls.paused or scheduler.controls.draining,
            }
            if any(left.values()):
                raise Divergence(f"{node.name} is not at rest: {left}")

    def _slots(self, node: Node) -> int:
        """Ticks that a group may have in flight: its window, or its slots."""
        return WINDOW_PER_STAGE * node.rank.place.size + self._cluster.limits.async_depth

    @property
    def hash(self) -> str:
        """Equal for equal runs: every digest of every rank and every message to the router, in order."""
        return self._hash.hexdigest()
