"""The router's one object on the loop: it joins membership, placement, the book of requests and the sockets."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

import zmq.asyncio

from router.asked import Asked, work_of
from router.attempt import Attempt
from router.errors import (
    ApiError,
    deadline_passed,
    nowhere_else,
    outgrown,
    shutting_down,
    stalled,
    still_quarantined,
    unknown_group,
    unreachable,
)
from router.exchange import Exchange
from router.format import Dialect
from router.membership import Change, Connect, Drop, Lost, Membership, State
from router.orders import words
from router.placement import RoundRobin, Route, routes
from router.ports import Model
from router.requests import Requests
from router.stream import Stream
from router.upstream import Upstream
from tandem.core.config import DRAIN_S, MAX_REQUESTS, REQUEST_TIMEOUT_S, Limits
from tandem.core.errors import ConfigError
from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Control, Knobs
from tandem.core.members import Member
from tandem.core.messages import SILENT_S, WATCH_S, Done, Load, ToRouter
from tandem.core.requests import Reason, Work

INLINE_BYTES = 8 * 1024
"""A longer body is parsed and tokenised on a thread, so that it does not hold up everybody's tokens."""

HURRY_S = 0.1
"""How often groups are watched while no pair is usable, so that the first request need not wait; else WATCH_S."""
STALL_S = SILENT_S - WATCH_S
"""Groups give up the requests of a router that is silent for SILENT_S, and cannot tell it so; its last Watch may have
left WATCH_S before it stalled."""

IDLE_S = 0.02
"""How often a router that is to end looks whether it still has something to do."""

log = logging.getLogger("tandem.router")


@dataclass(frozen=True)
class Rules:
    """What the operator may set, and what tests shorten."""

    max_concurrent_requests: int = MAX_REQUESTS
    request_timeout_s: float = REQUEST_TIMEOUT_S
    timer_scale: float = 1.0  # of the times after which the router or a group counts as failed, not of clients' times
    drain_s: float = DRAIN_S
    max_bodies_coming: int = 4 * MAX_REQUESTS  # half-sent bodies, which take no place among the requests
    max_payload_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 30.0
    ping_s: float = 5.0
    stalled_write_s: float = 30.0


class Service:
    """Lives on the loop's thread; only `start` and `stop` are coroutines. `crashed` hears of our own bugs."""

    def __init__(
        self,
        rules: Rules,
        model: Model,
        connect: Callable[[str], zmq.asyncio.Socket],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self.rules = rules
        self.model = model
        self.membership = Membership(model.name, rules.timer_scale)
        self.draining = False
        self._placement = RoundRobin()
        self._connect = connect
        self._crashed = crashed
        self._reading = 0
        self._admitted = 0
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="tokenise")

    async def start(self) -> None:
        """Call once, on the loop."""
        self._loop = asyncio.get_running_loop()
        self.upstream = Upstream(self._connect, self._on_message, self._on_hang_up, self._crashed)
        rules = self.rules
        self.requests = Requests(
            self.upstream.send, self._again, self._loop, rules.request_timeout_s, rules.timer_scale
        )
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Ends what is still open, and closes the sockets."""
        self.drain()
        self.end()
        self._ticking.cancel()
        self.upstream.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.draining = True

    async def idle(self) -> None:
        """Wait until no request is open."""
        while self._admitted:
            await asyncio.sleep(IDLE_S)

    def end(self) -> None:
        """End the open ones, honestly."""
        self.requests.fail_all(shutting_down())

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While a body comes: it takes no place among the requests yet. Raises ApiError 429 or 503."""
        self._check_place()
        if self._reading >= self.rules.max_bodies_coming:
            text = f"this router already waits for {self._reading} bodies, its limit"
            raise ApiError(429, "too_many_requests", text, retry_after_s=1)
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    @contextlib.contextmanager
    def admission(self) -> Iterator[None]:
        """A place among the concurrent requests, once the body is read. Raises ApiError 429 or 503."""
        self._check_place()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    def _check_place(self) -> None:
        if self.draining:
            raise shutting_down()
        if self._admitted >= self.rules.max_concurrent_requests:
            text = f"this router already serves {self._admitted} requests, its limit"
            raise ApiError(429, "too_many_requests", text, retry_after_s=1)

    @property
    def coming(self) -> int:
        """Requests whose body is being read."""
        return self._reading

    @property
    def admitted(self) -> int:
        """Requests waiting or being answered."""
        return self._admitted

    async def begin(self, dialect: Dialect, payload: bytes, rid: RequestId, deadline: float) -> tuple[Asked, Exchange]:
        """Understand a body and send its work to a route. Raises ApiError."""
        if len(payload) <= INLINE_BYTES:
            ask = dialect.read(payload, self.model)
        else:
            ask = await self._read_aside(dialect, payload, deadline)
        if self.draining:
            raise shutting_down()
        route = self._placement.choose(self._routes())
        if route is None:
            raise self.not_ready()
        attempt = Attempt(work_of(ask, Room(rid, 1), route), route)
        if wait_s := self.requests.quarantine.left_s(attempt.work, self._loop.time()):
            raise still_quarantined(wait_s)
        stream = Stream(attempt, self.model.vocab, self.model.tokenizer.detokenizer(), ask.stops)
        return ask, self.requests.open(stream, deadline=deadline, streaming=ask.streaming)

    def _routes(self) -> list[Route]:
        return routes(self.membership.usable())

    def _again(self, before: Route, work: Work, without: Sequence[str]) -> Route:
        """Where a request goes on: on the groups that know it, if they can. Raises ApiError.

        A group that is being drained still finishes what was begun somewhere, if nobody else can; but not what
        another one has refused for that.
        """
        serving = _without(routes(self.membership.serving()), without)
        same = [route for route in serving if route.names == before.names]
        known = same + _without(self._routes(), without) or ([] if without else serving)
        able = [route for route in known if route.obstacle(work) is None]
        if known and not able:
            raise outgrown(len(work.prompt))
        route = next((route for route in able if route.names == before.names), None) or self._placement.choose(able)
        if route is None:
            raise nowhere_else() if self._routes() else self.not_ready()
        return route

    async def _read_aside(self, dialect: Dialect, payload: bytes, deadline: float) -> Asked:
        """On a thread; waiting for one counts against the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._loop.run_in_executor(self._pool, dialect.read, payload, self.model)
        except TimeoutError:
            raise deadline_passed(self.rules.request_timeout_s) from None

    def not_ready(self) -> ApiError:
        """Why no request can be placed at this moment."""
        code, text = self.membership.why_none()
        return ApiError(503, code, text, retry_after_s=1)

    def ready(self) -> bool:
        """At least one route can be taken."""
        return not self.draining and bool(self._routes())

    def tell(self, group: str, order: Control | Knobs) -> None:
        """Pass an operator's order on. Raises ApiError 404 or 503."""
        self.limits(group)
        if not self.membership.talks(group) or not self.upstream.send(group, order):
            raise unreachable(group)
        log.info("group %s is told: %s", group, words(order))
        if isinstance(order, Control):
            self.membership.on_order(group, order.order)

    def limits(self, group: str) -> Limits:
        """What a group was started with. Raises ApiError 404 or 503."""
        watched = next((watched for watched in self.membership.groups() if watched.group.name == group), None)
        if watched is None:
            raise unknown_group(group)
        if watched.head is None:
            raise unreachable(group)
        return watched.head.limits

    def on_members(self, members: list[Member]) -> None:
        """A new look at the registry."""
        self._apply(self.membership.on_members(members, self._loop.time()))

    def on_lost(self, group: str, cause: str, *, crashed: bool = True) -> None:
        """Somebody who knows says that this group is gone."""
        self._apply(self.membership.on_lost(group, cause, crashed=crashed))

    def _on_hang_up(self, group: str) -> None:
        self._apply(self.membership.on_hang_up(group))

    def _on_message(self, group: str, message: ToRouter) -> None:
        match message:
            case Load():
                self.membership.on_load(group, self._loop.time(), message)
            case Done(reason=Reason.GROUP_LOST):  # said of one request, but true of all
                self.on_lost(group, "its epoch has ended")
            case Done(reason=Reason.GROUP_LEFT):
                self.on_lost(group, "it was told to end", crashed=False)
            case _:
                self.requests.on_message(group, message)

    async def _tick(self) -> None:
        looked = self._loop.time()
        while True:
            now = self._loop.time()
            if now - looked > STALL_S * self.rules.timer_scale:
                log.error("the router was stopped for %.1f s", now - looked)
                self.requests.on_stall(stalled(now - looked))
            looked = now
            self._apply(self.membership.on_time(now))
            self.upstream.watch()
            await asyncio.sleep(WATCH_S if self.ready() else HURRY_S)

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Connect(group, address):
                    self._connect_to(group, address)
                case Lost(group, cause, crashed):
                    log.warning("group %s was lost: %s", group, cause)
                    self.requests.on_lost(group, cause, crashed=crashed)
                case Drop(group):
                    self.upstream.drop(group)
                case _:
                    assert_never(change)

    def _connect_to(self, group: str, address: str) -> None:
        log.info("connecting to group %s at %s", group, address)
        try:
            self.upstream.connect(group, address)
        except ConfigError as error:
            self.on_lost(group, str(error))

    def status(self) -> dict[str, object]:
        """How this router is doing, for people and for who waits for its end."""
        state = "draining" if self.draining else "ready" if self.ready() else "not ready"
        return {
            "state": state,
            "open": len(self.requests),
            "admitted": self._admitted,
            "coming": self._reading,
            "migrated": self.requests.migrated,
            "quarantined": self.requests.quarantined,
            "prompts_refused": len(self.requests.quarantine),
        }

    def workers(self) -> list[dict[str, object]]:
        """The known groups, for people."""
        now = self._loop.time()
        return [
            {
                "name": watched.group.name,
                "role": watched.group.role.value,
                "state": self.membership.state(watched).name.lower(),
                "usable": self.membership.state(watched) is State.USABLE,
                "cause": watched.lost,
                "size": watched.group.size,
                "members": [
                    {"rank": rank, "host": member.host, "http": member.http, "epoch": member.epoch}
                    for rank, member in sorted(watched.ranks.items())
                ],
                "fingerprint": watched.head.fingerprint if watched.head else None,
                "open": self.requests.on_group(watched.group.name),
                "heard_s_ago": None if watched.heard is None else round(now - watched.heard, 3),
                "waiting": watched.load.waiting if watched.load else None,
                "running": watched.load.running if watched.load else None,
                "free_pages": watched.load.free_pages if watched.load else None,
            }
            for watched in self.membership.groups()
        ]


def _without(among: Sequence[Route], names: Sequence[str]) -> list[Route]:
    return [route for route in among if not any(name in names for name in route.names)]
