"""A whole cluster in virtual time: the production Rank and Scheduler, an engine per rank, and nothing else is real."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import msgspec

from tandem.assembly import build_rank
from tandem.core.config import Group, Limits, RoleName
from tandem.core.effects import Effect
from tandem.core.errors import Divergence
from tandem.core.events import Event, PeerLost, PeerOpened
from tandem.core.ids import LEADER, Epoch, RankId, Room, Tick
from tandem.core.inputs import Submit
from tandem.core.messages import Cancel, Done, Hello, Token
from tandem.core.rank import Rank
from tandem.core.requests import Reason, Work
from tandem.ports import Engine
from tandem.sim.client import Client
from tandem.sim.clock import Action, Channel, Clock, stream
from tandem.sim.node import Node, Pace
from tandem.sim.story import tell

EPOCH = Epoch(1)

STEADY = Pace()
MOST_EVENTS = 2_000_000
"""A run that has not come to rest by then never will."""

NOBODY_LATE: Mapping[str, int] = {}

EngineFactory = Callable[[Group, RankId, Limits], Engine]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What to simulate: groups, their limits, how long things take."""

    groups: tuple[Group, ...]
    limits: Limits
    pace: Pace = STEADY


class World:
    """Runs a cluster and checks after every event that ranks agree."""

    def __init__(self, seed: int, cluster: Cluster, engines: EngineFactory, client: Client) -> None:
        self.clock = Clock()
        self.client = client
        self.pace = cluster.pace
        self.steps = 0
        self.busy_until_us = 0  # when the last tick was stepped
        self.unsettled: dict[Room, None] = {}  # a write for them has ended, and may still land
        self.tell: Callable[[str], None] | None = None  # is given the run in words
        self._seed = seed
        self._cluster = cluster
        self._channels: dict[tuple[str, str, str], Channel] = {}
        self._digests: dict[tuple[str, Tick], int] = {}
        self._stepped: dict[tuple[str, RankId], Tick] = {}
        self._hash = hashlib.blake2b(digest_size=8)
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
        rng = stream(self._seed, f"node {group.name} {rank}")
        return Node(self, build_rank(group, rank, EPOCH, limits), engine, hello, rng)

    def _introduce(self) -> None:
        """Every prefill rank meets every decode rank, at its own time."""
        rng = stream(self._seed, "handshakes")
        for one in self._nodes.values():
            for other in self._nodes.values():
                if self._role(one) is not self._role(other):
                    self.clock.after(rng.randint(*self.pace.handshake_us), self._event(one, PeerOpened(other.hello)))

    def part(self, one: Node, other: Node, delays_us: tuple[int, int], gone_us: int) -> None:
        """Two ranks of different groups lose each other, each noticing at its own time, and meet again after that.

        What was under way between them still arrives.
        """
        for node, peer, delay_us in ((one, other, delays_us[0]), (other, one, delays_us[1])):
            place = peer.rank.place
            self.clock.after(delay_us, self._event(node, PeerLost(place.group, place.rank)))
            self.clock.after(delay_us + gone_us, self._event(node, PeerOpened(peer.hello)))

    def _role(self, node: Node) -> RoleName:
        return next(group.role for group in self._cluster.groups if group.name == node.rank.place.group)

    def _event(self, node: Node, event: Event) -> Action:
        return lambda: node.on(event)

    def node(self, group: str, rank: RankId) -> Node:
        """A rank by name."""
        return self._nodes[group, rank]

    def group(self, name: str) -> list[Rank]:
        """The ranks of one group."""
        return [node.rank for (group, _), node in self._nodes.items() if group == name]

    @property
    def nodes(self) -> list[Node]:
        """All ranks."""
        return list(self._nodes.values())

    def send(self, sender: Node, receiver: Node, link: str, deliver: Action) -> None:
        """Over the link of this name between two ranks: in order, with a random delay."""
        self._channel(self._name(sender), self._name(receiver), link).send(deliver)

    def _channel(self, sender: str, receiver: str, link: str) -> Channel:
        key = (sender, receiver, link)
        if key not in self._channels:
            self._channels[key] = Channel(self.clock, stream(self._seed, "/".join(key)), self.pace.message_us)
        return self._channels[key]

    def _name(self, node: Node) -> str:
        return f"{node.rank.place.group}.{node.rank.place.rank}"

    # the router's side

    def submit(
        self,
        work: Work,
        prefill: str,
        decode: str,
        remaining_ms: int = 600_000,
        late_us: Mapping[str, int] = NOBODY_LATE,
    ) -> None:
        """Send one request to both groups of a pair, as the router does. A repeated call sends a duplicate."""
        self.client.submitted(work)
        for group, peer in ((prefill, decode), (decode, prefill)):
            if work.max_tokens == 1 and group == decode:
                continue
            named = None if work.max_tokens == 1 else peer
            message = Submit(msgspec.structs.replace(work, peer=named), remaining_ms)
            if late_us.get(group):
                self.clock.after(late_us[group], partial(self._to_group, group, message))
            else:
                self._to_group(group, message)

    def cancel(self, work: Work, groups: tuple[str, ...], reason: Reason = Reason.CLIENT_GONE) -> None:
        """The client left: tell the groups."""
        for group in groups:
            self._to_group(group, Cancel(work.room, reason))

    def _to_group(self, group: str, message: Submit | Cancel) -> None:
        node = self.node(group, LEADER)
        self._channel("router", self._name(node), "intake").send(lambda: node.on(message))

    def to_client(self, node: Node, message: Token | Done) -> None:
        """A group speaks to the router."""
        group = node.rank.place.group
        self._hash.update(f"{group} {message}".encode())
        self._channel(self._name(node), "router", "intake").send(lambda: self.client.on_message(group, message))

    # running and checking

    def run(self, most_events: int = MOST_EVENTS) -> None:
        """Until nothing is left to happen."""
        while self.clock.advance():
            self.steps += 1
            if self.steps > most_events:
                raise Divergence(f"still busy after {most_events} events")

    def told(self, node: Node, event: Event, effects: list[Effect]) -> None:
        """A rank has taken an event."""
        if self.tell is not None:
            for line in tell(self.clock.now_us, self._name(node), event, effects):
                self.tell(line)

    def check_tick(self, node: Node) -> None:
        """Every rank of a group has the same digest at the same tick."""
        place = node.rank.place
        done = self._stepped.get((place.group, place.rank), Tick(-1))
        news = takewhile(lambda entry: entry[0].tick > done, reversed(node.rank.flight_record))
        for frame, digest in reversed(list(news)):
            expected = self._digests.setdefault((place.group, frame.tick), digest)
            if digest != expected:
                raise Divergence(f"{self._name(node)} has digest {digest:x} at tick {frame.tick}, others {expected:x}")
            self._hash.update(digest.to_bytes(8, "big"))
            self.busy_until_us = self.clock.now_us
        self._stepped[place.group, place.rank] = node.rank.scheduler.tick

    def check_at_rest(self) -> None:
        """Nothing is left anywhere: rooms, sessions, facts, pages. Rooms of unsettled writes are, on every rank.

        A fence could give their pages back, but there is none yet.
        """
        rooms = len(self.unsettled)
        for node in self.nodes:
            role, table = node.rank.scheduler.role, node.table
            role.pool.audit()
            held = sum(len(role.pool.held(room)) for room in self.unsettled)
            left = {
                "queues": tuple(role.lengths()) != (rooms, 0, 0),
                "held rooms": [room for room in self.unsettled if not role.pool.held(room)],
                "sessions": node.rank.courier.open_rooms() != rooms,
                "routers": set(node.routers) - set(self.unsettled),
                "facts": len(node.column) > rooms or (table is not None and len(table) > rooms * node.rank.place.size),
                "pages": role.pool.num_pages - role.pool.free - held,
                "votes": len(node.rank.scheduler.votes),
                "flights": len(node.rank.scheduler.flights),
            }
            if any(left.values()):
                raise Divergence(f"{self._name(node)} is not at rest, {rooms} rooms are unsettled: {left}")

    @property
    def ticks(self) -> int:
        """Ticks that any group has stepped."""
        return len(self._digests)

    @property
    def hash(self) -> str:
        """Equal for equal runs: every digest of every rank and every message to the router, in order."""
        return self._hash.hexdigest()
