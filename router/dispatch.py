"""Joins the groups that there are with the requests that they work on: who gets a request, and where it goes on.

It has no loop, socket or thread: the router's service runs it, and so does the simulator.
"""

import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from router.attempt import Attempt
from router.breakers import FAILURES_MAX, OPEN_S, Breakers, Key
from router.budget import RetryBudget
from router.cost import Sight
from router.errors import ApiError, nowhere_else, outgrown
from router.index import Hashed
from router.membership import Change, Connect, Drop, Lost, Membership
from router.placement import Route, routes
from router.policies import policy_of
from router.requests import Clock, Requests
from router.underway import Underway
from tandem.core.config import RETRIES_MAX, PolicyName
from tandem.core.errors import ConfigError
from tandem.core.ids import Room
from tandem.core.members import Member
from tandem.core.messages import Cached, Done, Load, Portion, ToGroup, Token, ToRouter
from tandem.core.requests import Reason, Work

LOSSES = 64
"""Of groups, that are remembered."""

log = logging.getLogger("tandem.router")


@dataclass(frozen=True)
class Loss:
    """A group was lost, at this time of the dispatch's clock."""

    at: float
    group: str
    cause: str


class Links(Protocol):
    """The connections to the groups."""

    def connect(self, group: str, address: str) -> None:
        """Talk to this address from now on, and to no older one. Raises ConfigError."""

    def send(self, group: str, message: ToGroup) -> bool:
        """False when the message cannot leave."""
        ...

    def drop(self, group: str) -> None:
        """Close the connection."""


class Dispatch:
    """`membership` is what is known of the groups, `requests` the book of those that are open."""

    def __init__(
        self,
        membership: Membership,
        links: Links,
        clock: Clock,
        timeout_s: float,
        timer_scale: float = 1.0,
        *,
        policy: PolicyName = "cache_aware",
        breaker_failures: int = FAILURES_MAX,
        breaker_s: float = OPEN_S,
        retries_max: int = RETRIES_MAX,
        budget: RetryBudget | None = None,
        seed: int = 0,
    ) -> None:
        self.membership = membership
        self.requests = Requests(
            links.send,
            self._again,
            clock,
            timeout_s,
            timer_scale,
            journeys=self,
            budget=budget or RetryBudget(random.random),
            retries_max=retries_max,
        )
        self.policy_name = policy
        self.policy = policy_of(policy, seed)
        self.underway = Underway(looks=self.policy.looks)
        self.breakers = Breakers(breaker_failures, breaker_s)
        self.losses: deque[Loss] = deque(maxlen=LOSSES)
        """For operators: a group that is back already is one that was lost."""
        self.placed = 0
        """Attempts that were sent to groups."""
        self._links = links
        self._clock = clock
        self._hashed = Hashed((), "")
        self._heads: list[Member] = []
        self._routes: list[Route] = []  # of these
        self._several = False  # routes were there to choose from, so that it pays to look at what is cached

    # where requests go

    def routes(self) -> list[Route]:
        """Those that take new requests."""
        heads = self.membership.usable()
        if heads is not self._heads:
            if heads != self._heads:
                self._routes = routes(heads)
            self._heads = heads
        return self._routes

    def place(self, prompt: tuple[int, ...], salt: str) -> Route:
        """Of a new request. Raises ApiError."""
        route = self._choose(self.routes(), self.hashed(prompt, salt))
        if route is None:
            raise self.why_not_ready()
        return route

    def _choose(self, able: Sequence[Route], hashed: Hashed) -> Route | None:
        """Where a breaker is open, nobody goes as long as there is another route."""
        self._several = len(able) > 1
        if len(able) == 1 and self.underway.looks:
            return able[0]
        free, resting = self.by_breaker(able)
        return self.policy.choose(free or resting, lambda routes: self.sight(routes, hashed))

    def by_breaker(self, able: Sequence[Route]) -> tuple[list[Route], list[Route]]:
        """Routes that requests may take, and those that a breaker keeps them from."""
        if not len(self.breakers):
            return list(able), []
        free: list[Route] = []
        resting: list[Route] = []
        for route in able:
            (resting if self.rest(route)[1] > 0 else free).append(route)
        return free, resting

    def rest(self, route: Route) -> tuple[Key, float]:
        """Which breaker keeps requests from a route, and for how long yet."""
        return self.breakers.rest(route.names, self._clock.time())

    def sight(self, among: Sequence[Route], hashed: Hashed) -> Sight:
        """What a placement of this prompt depends on."""
        now = self._clock.time()
        failures = {}
        if len(self.breakers):
            failures = {route.names: self.breakers.lately(route.names, now) for route in among}
        return self.underway.sight(among, hashed, failures, now)

    def hashed(self, prompt: tuple[int, ...], salt: str) -> Hashed:
        """The last one is kept: a prompt is placed, then sent, and perhaps several times."""
        if self._hashed.salt != salt or self._hashed.prompt != prompt:
            self._hashed = Hashed(prompt, salt)
        return self._hashed

    def why_not_ready(self) -> ApiError:
        """Why no request can be placed at this moment."""
        code, text = self.membership.why_none()
        return ApiError(503, code, text, retry_after_s=1)

    def _again(self, before: Route, work: Work, without: Sequence[str], doubted: Mapping[str, int]) -> Route:
        """Where a request goes on: on the groups that know it, if they can and others are in doubt as well.

        A group that breaks piece by piece fails hand-overs before it is known to be lost. Raises ApiError.

        A group that is being drained still finishes what was begun somewhere, if nobody else can; but not what
        another one has refused for that.
        """
        serving = _without(routes(self.membership.serving()), without)
        same = [route for route in serving if route.names == before.names]
        known = same + _without(self.routes(), without) or ([] if without else serving)
        able = [route for route in known if route.obstacle(work) is None]
        if known and not able:
            raise outgrown(len(work.prompt))
        able = _least(able, doubted)
        route = next((route for route in self.by_breaker(able)[0] if route.names == before.names), None)
        route = route or self._choose(able, self.hashed(work.prompt, work.salt))
        if route is None:
            raise nowhere_else() if self.routes() else self.why_not_ready()
        return route

    # what becomes of attempts, see Journeys

    def sent(self, attempt: Attempt) -> None:
        """Its groups get it now."""
        work, now = attempt.work, self._clock.time()
        self.placed += 1
        self.breakers.tried(attempt.route.names, now)
        self.underway.sent(attempt.room, attempt.heads, self.hashed(work.prompt, work.salt), now, looks=self._several)

    def computed(self, room: Room) -> None:
        """Its first token is here."""
        self.underway.computed(room)

    def ended(self, attempt: Attempt, faulty: Key, *, well: bool) -> None:
        """Nobody works on it any more."""
        self.underway.ended(attempt.room)
        names, now = tuple(head.group.name for head in attempt.heads), self._clock.time()
        if faulty:
            self.breakers.failed(faulty, now)
        if well:
            self.breakers.passed(names)
        else:
            self.breakers.nothing(attempt.route.names, now)

    # what is heard of the groups

    def cached(self, group: str) -> int | None:
        """How far its prefix cache is known; None when nobody wants to know."""
        return self.underway.of(group).index.number if self.underway.looks else None

    def on_members(self, members: list[Member]) -> None:
        """A new look at the registry."""
        self._apply(self.membership.on_members(members, self._clock.time()))

    def on_lost(self, group: str, cause: str, *, crashed: bool = True) -> None:
        """Somebody who knows says that this group is gone."""
        self._apply(self.membership.on_lost(group, cause, crashed=crashed))

    def on_hang_up(self, group: str) -> None:
        """The connection to a group broke."""
        self._apply(self.membership.on_hang_up(group))

    def on_time(self) -> None:
        """Call it about once a second."""
        self._apply(self.membership.on_time(self._clock.time()))

    def on_message(self, group: str, message: ToRouter) -> None:
        """What a group says."""
        match message:
            case Token() | Portion():
                self.requests.on_message(group, message)
            case Cached():
                self.underway.of(group).index.on_cached(message)
            case Load():
                self.membership.on_load(group, self._clock.time(), message)
                self.underway.of(group).on_load(message)
            case Done(reason=Reason.GROUP_LOST, cause=cause):  # said of one request, but true of all
                self.on_lost(group, f"its epoch has ended: {cause}" if cause else "its epoch has ended")
            case Done(reason=Reason.GROUP_LEFT):
                self.on_lost(group, "it was told to end", crashed=False)
            case _:
                self.requests.on_message(group, message)

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Connect(group, address):
                    self.underway.of(group).start_over()
                    self._connect_to(group, address)
                case Lost(group, cause, crashed):
                    log.warning("group %s was lost: %s", group, cause)
                    self.losses.append(Loss(self._clock.time(), group, cause))
                    self.underway.of(group).start_over()
                    if crashed:
                        self.breakers.failed((group,), self._clock.time())
                    self.requests.on_lost(group, cause, crashed=crashed)
                case Drop(group):
                    self._links.drop(group)
                    self.underway.forget(group)
                    self.breakers.forget([watched.group.name for watched in self.membership.groups()])
                case _:
                    assert_never(change)

    def _connect_to(self, group: str, address: str) -> None:
        log.info("connecting to group %s at %s", group, address)
        try:
            self._links.connect(group, address)
        except ConfigError as error:
            self.on_lost(group, str(error))


def _without(among: Sequence[Route], names: Sequence[str]) -> list[Route]:
    return [route for route in among if not any(name in names for name in route.names)]


def _least(among: Sequence[Route], doubted: Mapping[str, int]) -> list[Route]:
    """The routes whose groups are in doubt least often."""
    doubts = [sum(doubted.get(name, 0) for name in route.names) for route in among]
    fewest = min(doubts, default=0)
    return [route for route, count in zip(among, doubts, strict=True) if count == fewest]
