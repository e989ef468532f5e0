"""The router in the simulator: the production book of requests, membership and placement, on links in virtual time."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from router.attempt import Attempt
from router.breakers import FAILURES_MAX
from router.budget import RetryBudget, unlimited
from router.dispatch import Dispatch
from router.errors import ApiError, still_quarantined
from router.membership import Membership
from router.placement import Route as Served
from router.reader import Reader
from router.requests import REASON_RETRIES_MAX
from router.stream import Stream
from tandem.core.config import PolicyName
from tandem.core.ids import LEADER, RequestId, Room
from tandem.core.inputs import Control, Knobs, Submit
from tandem.core.journal import Journal, Telling
from tandem.core.members import Member
from tandem.core.messages import WATCH_S, Cached, Cancel, Done, Evicted, Load, Portion, ToGroup, Token, ToRouter, Watch
from tandem.core.requests import Reason, Work
from tandem.sim.client import Client
from tandem.sim.clock import Seconds, Span, between, stream
from tandem.sim.routes import Route

if TYPE_CHECKING:
    from tandem.sim.node import Node
    from tandem.sim.world import World

MODEL = "sim"
VOCAB = 1 << 31
"""Of any model: the oracle knows which token is right."""
PATIENT_MS = 600_000
NOBODY_LATE: Mapping[str, int] = {}
TIMER_SCALE = 0.02
"""Everything here is so much faster than in production: a silent group is lost after a tenth of a second."""
WATCH_US = int(WATCH_S * TIMER_SCALE * 1_000_000)
LOOKED_US: Span = (0, 20_000)
"""Until the router knows what has changed in the registry."""
LATE_US: Span = (0, 30_000)
"""How late its timers may be, so that groups, which keep deadlines themselves, mostly are first."""
UNHEARD_US = 400_000
"""Until a group that does not hear from the router that a client has left, does so if its peer has not told it."""
MOST_LOOKS = 100
"""Until it has found out that all groups are there and take requests."""
NEVER = 2**62
"""Failures in a row: no breaker opens, so that recorded seeds go on as they did."""
ROUTER = "router"
"""Its end of a link."""

logging.getLogger("tandem.router").addHandler(logging.NullHandler())


class Misplaced(Exception):
    """The router gives work to a group that is gone, or none to one that is there."""


class Ids:
    """Fits `Detokenizer`. Tokens are looked at, not text."""

    def push(self, token: int) -> str:
        """See Detokenizer."""
        del token
        return ""

    def push_all(self, tokens: Sequence[int]) -> str:
        """See Detokenizer."""
        del tokens
        return ""

    def finish(self) -> str:
        """See Detokenizer."""
        return ""


class Router:
    """Talks to the groups' rank 0, over links that keep the order, each message with a delay of its own.

    With round robin each request goes to the groups that the case names, retries go at once and no breaker opens, so
    that recorded seeds go on as they did. With another policy everything is as in production.
    """

    def __init__(
        self, world: "World", client: Client, heard: Callable[[bytes], None], policy: PolicyName = "round_robin"
    ) -> None:
        self._world = world
        self._client = client
        self._heard = heard
        self._rng = stream(world.seed, "router")
        self._time = Seconds(world.clock, lambda: between(self._rng, LATE_US))
        self._links: dict[str, Node] = {}  # to whom we are connected
        self._heads: dict[str, Node] = {}  # by address: every rank 0 that the registry has shown
        self._submits: dict[Room, list[tuple[Node, Submit]]] = defaultdict(list)
        self._late_us: dict[RequestId, Mapping[str, int]] = {}
        self._told: dict[RequestId, Route] = {}  # who may hear that a client has left
        self._farewells: dict[Node, None] = {}  # who has said or shown that it is gone
        self.made_up_for: list[str] = []  # groups that their peer had not told of a client's leaving
        self._watching = False
        self._looks = 0  # in a row, at a cluster that is whole but not usable
        self.membership = Membership(MODEL, TIMER_SCALE)
        as_named = policy == "round_robin"
        self._chooses = not as_named
        self._tellings: dict[Node, tuple[Journal, Telling]] = {}  # of whom we hear what is cached
        self.dispatch = Dispatch(
            self.membership,
            self,
            self._time,
            PATIENT_MS / 1000,
            TIMER_SCALE,
            policy=policy,
            breaker_failures=NEVER if as_named else FAILURES_MAX,
            budget=unlimited() if as_named else RetryBudget(stream(world.seed, "retries").random),
        )
        if policy == "cache_aware":
            world.watchers.append(self._tell_cached)

    # requests

    def submit(
        self,
        work: Work,
        groups: Route,
        remaining_ms: int = PATIENT_MS,
        late_us: Mapping[str, int] = NOBODY_LATE,
        retries: int = 0,
    ) -> None:
        """Take one request, for a pair of groups, prefill first, or for one that serves it alone; for others if not.

        A repeated call sends a duplicate. `retries` is what is left of the budget for each kind of failed hand-over.
        """
        if work.room in self._client.answers:
            self._send_again(work.room)
            return
        now_us = self._world.clock.now_us
        answer = self._client.asks(work, now_us, now_us + 1000 * remaining_ms)
        self._late_us[work.room.rid] = late_us
        try:
            served = self._place(work, groups)
        except ApiError as error:
            answer.refusal = error
            return
        exchange = self.dispatch.requests.open(
            Stream(Attempt(work, served), VOCAB, Ids(), ()),
            deadline=answer.deadline_us / 1e6,
            reader=Reader(streaming=True),  # so that each token is told by itself
        )
        answer.exchange = exchange
        exchange.retries = Counter({reason: max(0, most - retries) for reason, most in REASON_RETRIES_MAX.items()})

    def _send_again(self, room: Room) -> None:
        """No incarnation gets what was meant for one before it: its connection has ended."""
        for node, submit in self._submits[room]:
            self._deliver(node, submit)

    def _place(self, work: Work, groups: Route) -> Served:
        """Raises ApiError."""
        if wait_s := self.dispatch.requests.quarantine.left_s(work, self._time.time()):
            raise still_quarantined(wait_s)
        routes = [] if self._chooses else self.dispatch.routes()
        return next((route for route in routes if route.names == groups), None) or self.dispatch.place(
            work.prompt, work.salt
        )

    def cancel(self, work: Work, groups: Route) -> None:
        """The client leaves. Those of the groups hear of it that serve it now, or all that do if none of them does."""
        answer = self._client.answer(work.room)
        answer.left = Reason.CLIENT_GONE
        if answer.exchange is not None:
            self._told[work.room.rid] = tuple(name for name in answer.groups if name in groups) or answer.groups
            answer.exchange.abandon()

    # links, as the dispatch needs them

    def connect(self, group: str, address: str) -> None:
        """See Links."""
        node = self._links[group] = self._heads[address]
        self.send(group, Watch())
        if self.dispatch.underway.looks and node not in self._tellings:
            journal = node.rank.scheduler.role.pool.keep_journal()
            self._tellings[node] = journal, Telling(journal)

    def drop(self, group: str) -> None:
        """See Links."""
        self._links.pop(group, None)

    def send(self, group: str, message: ToGroup) -> bool:
        """See Links. What some tests and faults lose or hold up on its way is lost or held up here."""
        node = self._links.get(group)
        if node is None:
            return False
        match message:
            case Submit(work=work):
                if node in self._farewells:
                    raise Misplaced(f"{work.room} is given to {node.name}, which has taken its leave")
                self._client.submitted(group, work)
                self._submits[work.room].append((node, message))
                if late_us := self._lateness_us(group, work.room):
                    self._world.clock.after(late_us, partial(self._deliver, node, message))
                    return True
            case Cancel(room=room, reason=Reason.CLIENT_GONE) if group not in self._told.get(room.rid, (group,)):
                heard_us = self._lateness_us(group, room) + UNHEARD_US
                self._world.clock.after(heard_us, partial(self._make_up_for, node, message))
                return True
            case _:
                pass
        self._deliver(node, message)
        return True

    def _lateness_us(self, group: str, room: Room) -> int:
        return self._late_us[room.rid].get(group, 0) if room.attempt == 1 else 0

    def _make_up_for(self, node: "Node", cancel: Cancel) -> None:
        """Its peer may have been gone, or its peer's word."""
        if not node.dead and node.rank.scheduler.role.knows(cancel.room):
            self.made_up_for.append(f"{node.name} had not heard of the end of {cancel.room}")
            self._deliver(node, cancel)

    def _deliver(self, node: "Node", message: ToGroup) -> None:
        channel = self._world.channel(ROUTER, node.name, "intake")
        if isinstance(message, Watch):
            channel.send(partial(node.take, partial(self._load_of, node)))
        else:
            channel.send(lambda: node.on(message))

    def to_group(self, group: str, message: Cancel | Control | Knobs) -> None:
        """An operator speaks to a group's rank 0, through us or another router."""
        self._deliver(self._world.node(group, LEADER), message)
        if isinstance(message, Control) and group in self._links:
            self.membership.on_order(group, message.order)
            self.watch()

    # what is heard

    def to_client(self, node: "Node", message: Token | Done | Evicted) -> None:
        """A group speaks to the router."""
        self._heard(f"{node.rank.place.group} {message}".encode())
        self._tell(node, message)

    def _tell(self, node: "Node", message: ToRouter) -> None:
        self._world.channel(node.name, ROUTER, "intake").send(partial(self._hear, node, message))

    def _tell_cached(self, node: "Node") -> None:
        """A rank 0 has stepped: it tells what has changed in its prefix cache.

        Links lose nothing here, so nobody has to say how far it has understood.
        """
        if node in self._tellings:
            telling = self._tellings[node][1]
            while (cached := telling.next()) is not None:
                telling.told(cached)
                telling.heard(cached.number)
                self._tell(node, cached)

    def check_known(self) -> None:
        """When all is at rest, what is known of every cache is what it holds."""
        for group, node in self._links.items():
            known = self.dispatch.underway.of(group)
            if node in self._tellings and known.index.holds() != frozenset(self._tellings[node][0].everything()):
                raise Misplaced(f"{len(known.index)} pages are known of {node.name}, which has others")
            if known.open or known.queued or known.computing:
                raise Misplaced(f"{known.open} requests seem to be under way on {group}, which is at rest")

    def _load_of(self, node: "Node") -> None:
        scheduler = node.rank.scheduler
        _, waiting, running = scheduler.role.lengths()[:3]
        group, free = node.rank.place.group, scheduler.role.pool.available
        self._tell(node, Load(group, waiting, running, free, scheduler.controls.draining, scheduler.controls.paused))

    def _hear(self, node: "Node", message: ToRouter) -> None:
        group = node.rank.place.group
        if not isinstance(message, Portion | Load | Cached):
            self._client.hear(group, message)
        if isinstance(message, Done) and message.reason in (Reason.GROUP_LOST, Reason.GROUP_LEFT) and node.dead:
            self._farewells[node] = None
        if self._links.get(group) is node:
            self.dispatch.on_message(group, message)

    def hang_up(self, node: "Node") -> None:
        """The end of a rank 0 ends its connections, after its last words."""
        self._world.channel(node.name, ROUTER, "intake").send(partial(self._hung_up, node))

    def _hung_up(self, node: "Node") -> None:
        group = node.rank.place.group
        self._farewells[node] = None
        if self._links.get(group) is node:
            self.dispatch.on_hang_up(group)

    # membership

    def begin(self) -> None:
        """All groups are known and have been heard."""
        self._look()
        for group in self._world.groups:
            self.membership.on_load(group.name, self._time.time(), Load(group.name, 0, 0, 0))

    def look(self) -> None:
        """The registry has changed: we shall know by and by."""
        self._world.clock.after(between(self._rng, LOOKED_US), self._look)
        self.watch()

    def _look(self) -> None:
        nodes = [node for node in self._world.nodes if not node.dead]
        self._heads |= {node.name: node for node in nodes if node.rank.place.first}
        self.dispatch.on_members([member_of(node) for node in nodes])

    def watch(self) -> None:
        """Look after the groups until all of them take requests: there is nothing to be seen afterwards."""
        if not self._watching:
            self._watching = True
            self._world.clock.after(WATCH_US, self._watch)

    def _watch(self) -> None:
        self._watching = False
        self.dispatch.on_time()
        for group in list(self._links):
            self.send(group, Watch())
        usable = len(self.membership.usable()) == len(self._world.groups)
        if usable and self._world.whole:
            self._looks = 0
            return
        self._looks = 0 if self._world.swarm.acting or not self._world.whole else self._looks + 1
        if self._looks > MOST_LOOKS:
            states = {one.group.name: self.membership.state(one).value for one in self.membership.groups()}
            raise Misplaced(f"all groups are there, but the router finds: {states}")
        self.watch()


def member_of(node: "Node") -> Member:
    """Its entry in the registry."""
    place = node.rank.place
    return Member(
        group=node.group,
        rank=place.rank,
        incarnation=node.number,
        boot_ms=place.epoch,
        host="",
        fingerprint="",
        model=MODEL,
        ring="",
        hidden="",
        http="",
        limits=node.limits,
        intake=node.name if place.first else "",
        epoch=place.epoch,
    )
