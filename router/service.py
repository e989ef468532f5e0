"""The router's one object on the loop: it joins membership, placement, the book of requests and the sockets."""

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from starlette.types import Receive, Scope

from router.asked import CHOICES_MAX
from router.auth import Doors
from router.dispatch import Dispatch, Loss
from router.errors import (
    ApiError,
    aborted,
    not_open,
    queue_full,
    shutting_down,
    stalled,
    unknown_group,
    unreachable,
)
from router.limits import Usages
from router.membership import Membership
from router.metrics import Metrics
from router.orders import words
from router.place import Place
from router.ports import Model
from router.queue import Queue, Wish
from router.recalled import Recalled
from router.tenants import Tenant
from router.tracing import Exports, Tracing
from router.traffic import Traffic
from router.transfers import parse
from router.turns import Turns
from router.upstream import Connect, Upstream
from router.watched import WatchedLinks
from tandem.core.config import DRAIN_S, MAX_REQUESTS, Frontend, Limits, PolicyName
from tandem.core.ids import RequestId
from tandem.core.inputs import Control, Knobs
from tandem.core.members import Member
from tandem.core.messages import SILENT_S, WATCH_S, Cached, Portion, Token, ToRouter

HURRY_S = 0.1
"""How often groups are watched while no pair is usable, so that the first request need not wait; else WATCH_S."""
STALL_S = SILENT_S - WATCH_S
"""Groups give up the requests of a router that is silent for SILENT_S, and cannot tell it so; its last Watch may have
left WATCH_S before it stalled."""

READ_MAX = 256
"""Requests beyond those at the groups and in the queue: whose bodies are understood, at the moment."""

IDLE_S = 0.02
"""How often a router that is to end looks whether it still has something to do."""

log = logging.getLogger("tandem.router")

_FRONTEND = Frontend()


@dataclass(frozen=True)
class Rules:
    """What the operator may set, and what tests shorten."""

    max_concurrent_requests: int = _FRONTEND.max_concurrent_requests
    queue_size: int = _FRONTEND.queue_size
    queue_timeout_s: float = _FRONTEND.queue_timeout_secs
    policy: PolicyName = _FRONTEND.policy
    retries_max: int = _FRONTEND.retry_max_retries
    breaker_failures: int = _FRONTEND.cb_failure_threshold
    breaker_s: float = _FRONTEND.cb_timeout_duration_secs
    request_timeout_s: float = _FRONTEND.request_timeout_secs
    timer_scale: float = 1.0  # of the times after which the router or a group counts as failed, not of clients' times
    drain_s: float = DRAIN_S
    max_bodies_coming: int = 4 * MAX_REQUESTS  # half-sent bodies, which take no place among the requests
    max_payload_bytes: int = _FRONTEND.max_payload_size
    body_timeout_s: float = 30.0
    ping_s: float = 5.0
    stalled_write_s: float = 30.0


class Service:
    """Lives on the loop's thread; only `start` and `stop` are coroutines. `crashed` hears of our own bugs."""

    def __init__(
        self,
        rules: Rules,
        model: Model,
        connect: Connect,
        crashed: Callable[[BaseException], None],
        doors: Doors,
        traces: Exports | None = None,
    ) -> None:
        self.rules = rules
        self.doors = doors
        self.model = model
        self.membership = Membership(model.name, rules.timer_scale)
        self.draining = False
        self.metrics = Metrics()
        self.tracing: Tracing | None = None
        if traces is not None:
            self.tracing = Tracing(traces, self.membership.groups, rules.timer_scale)
        self.over = asyncio.Event()
        """Set at the end: whoever only looks is not waited for."""
        self.recalled = Recalled()
        self._connect = connect
        self._crashed = crashed
        self.coming = 0
        """Requests whose body is being read."""
        self.admitted = 0
        """Requests waiting or being answered."""
        self._traffic = Traffic()
        self.usages = Usages()
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="tokenise")
        """For bodies that take long to understand."""

    async def start(self) -> None:
        """Call once, on the loop."""
        self._loop = asyncio.get_running_loop()
        self.upstream = Upstream(self._connect, self._on_message, self._on_hang_up, self._crashed, self._cached)
        rules = self.rules
        links = WatchedLinks(self.upstream, self.membership, self._traffic)
        self.dispatch = Dispatch(
            self.membership,
            links,
            self._loop,
            rules.request_timeout_s,
            rules.timer_scale,
            policy=rules.policy,
            breaker_failures=rules.breaker_failures,
            breaker_s=rules.breaker_s,
            retries_max=rules.retries_max,
            seed=secrets.randbits(64),
        )
        self.requests = self.dispatch.requests
        self.turns = Turns(
            Queue(rules.queue_size, rules.queue_timeout_s),
            rules.max_concurrent_requests,
            rules.request_timeout_s,
            self._has_room,
            self.upstream.watch,
            self._loop,
        )
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Ends what is still open, and closes the sockets."""
        self.drain()
        self.end()
        if self.tracing is not None:
            await self.tracing.stop()
        self._ticking.cancel()
        self.turns.close()
        self.upstream.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def drain(self) -> None:
        """Refuse new requests from now on, and those that nothing was begun of."""
        self.draining = True
        self.turns.clear(shutting_down(), going_on=False)

    async def idle(self) -> None:
        """Wait until no request is open."""
        while self.admitted:
            await asyncio.sleep(IDLE_S)

    def end(self) -> None:
        """End the open ones, honestly."""
        self.over.set()
        self.turns.clear(shutting_down(), going_on=True)
        self.requests.fail_all(shutting_down())

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While a body comes: it takes no place among the requests yet. Raises ApiError 429 or 503."""
        self._check_open()
        if self.coming >= self.rules.max_bodies_coming:
            text = f"this router already waits for {self.coming} bodies, its limit"
            raise ApiError(429, "too_many_requests", text, retry_after_s=1)
        self.coming += 1
        try:
            yield
        finally:
            self.coming -= 1

    def admission(self, scope: Scope, receive: Receive) -> Place:
        """A place for a request whose body is read: for a `with`. Raises ApiError 429 or 503."""
        self._check_open()
        rules, now = self.rules, self._loop.time()
        tenant: Tenant = scope["state"]["tenant"]
        if self.admitted >= rules.max_concurrent_requests + rules.queue_size + READ_MAX:
            raise queue_full(len(self.turns.queue), self.turns.queue.retry_after_s(now))
        usage = self.usages.of(tenant.name, tenant.quota, now)
        usage.begin(now)
        self.admitted += 1
        return Place(tenant, receive, self.turns, usage, self._loop.time, self._leave)

    def _leave(self) -> None:
        self.admitted -= 1

    def _check_open(self) -> None:
        if self.draining:
            raise shutting_down()

    def _has_room(self, wish: Wish) -> bool:
        """Where nobody serves, nobody waits either: the answer says why."""
        able = self.dispatch.routes()
        return not able or any(self._traffic.has_room(route, wish) for route in able)

    def why_not_ready(self) -> ApiError:
        """Why no request can be placed at this moment."""
        return self.dispatch.why_not_ready()

    def ready(self) -> bool:
        """At least one route can be taken."""
        return not self.draining and bool(self.dispatch.routes())

    def tell(self, group: str, order: Control | Knobs) -> None:
        """Pass an operator's order on. Raises ApiError 404 or 503."""
        self.limits(group)
        if not self.membership.talks(group) or not self.upstream.send(group, order):
            raise unreachable(group)
        log.info("group %s is told: %s", group, words(order))
        if isinstance(order, Control):
            self.membership.on_order(group, order.order)

    def abort(self, text: str) -> int:
        """End the open request of this id; the number of its choices that had not ended. Raises ApiError 400 or 404."""
        digits, attempt = parse(text)
        rid = int(digits, 16)
        # Its choices have the ids that follow: the id of one of them is not that of the request.
        choices = range(rid, rid + CHOICES_MAX) if attempt is None and rid % CHOICES_MAX == 0 else range(0)
        count = self.requests.abort(map(RequestId, choices), aborted())
        if not count:
            raise not_open(text)
        log.info("request %016x is aborted by an operator", rid)
        return count

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
        self.dispatch.on_members(members)

    def on_lost(self, group: str, cause: str, *, crashed: bool = True) -> None:
        """Somebody who knows says that this group is gone, or of what: one that has hung up is not lost again."""
        if self.membership.unexplained(group):
            log.warning("group %s: its %s", group, cause)
            _explain(self.dispatch.losses, group, cause)
        self.dispatch.on_lost(group, cause, crashed=crashed)

    def _cached(self, group: str) -> int | None:
        return self.dispatch.cached(group)

    def _on_hang_up(self, group: str) -> None:
        self.dispatch.on_hang_up(group)
        self.turns.pump()

    def _on_message(self, group: str, message: ToRouter) -> None:
        """Who waits has its turn when the dispatch has seen the message, too."""
        if isinstance(message, Portion) or (isinstance(message, Token) and message.index):
            return self.requests.on_message(group, message)  # nothing follows but text
        self.dispatch.on_message(group, message)
        if not isinstance(message, Cached) and self._traffic.on_message(self.membership.head(group), message):
            self.turns.pump()
        return None

    async def _tick(self) -> None:
        looked = self._loop.time()
        while True:
            now = self._loop.time()
            if now - looked > STALL_S * self.rules.timer_scale:
                log.error("the router was stopped for %.1f s", now - looked)
                self.requests.on_stall(stalled(now - looked))
            looked = now
            self.dispatch.on_time()
            if self.doors.look(now):
                self.usages.keep(self.doors.names)
            self.upstream.watch()
            await asyncio.sleep(WATCH_S if self.ready() else HURRY_S)

    def status(self) -> dict[str, object]:
        """How this router is doing, for people and for who waits for its end."""
        state = "draining" if self.draining else "ready" if self.ready() else "not ready"
        return {
            "state": state,
            "open": len(self.requests),
            "admitted": self.admitted,
            "queued": len(self.turns.queue),
            "coming": self.coming,
            "migrated": self.requests.migrated,
            "quarantined": self.requests.quarantined,
            "prompts_refused": len(self.requests.quarantine),
        }


def _explain(losses: deque[Loss], group: str, cause: str) -> None:
    """The newest of this group has been told without its cause; it may be forgotten by now."""
    for place in reversed(range(len(losses))):
        if losses[place].group == group:
            losses[place] = replace(losses[place], cause=cause)
            return
