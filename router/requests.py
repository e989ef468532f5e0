"""The book of open requests: every message of a group finds its request here, and every request ends here once."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from router.errors import (
    ApiError,
    client_gone,
    deadline_passed,
    ended_with,
    group_lost,
    overloaded,
    quarantined,
    slow_reader,
    stranded,
    unsent,
)
from router.exchange import Exchange
from router.placement import Route
from router.quarantine import Quarantine
from router.stream import Finished, Stream
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cancel, Done, Evicted, ToGroup, Token
from tandem.core.requests import Reason, Work

PEER_WAIT_S = 2.0
"""How long one group's PEER_ENDED waits for the other group's real reason."""

UNREAD_CHARS = 256 * 1024
"""Text kept behind a connection whose own buffers are full; more ends the request."""

EVICTIONS_MAX = 8
"""How often one request may lose its pages and be computed anew; one more ends it."""

LOSSES_MAX = 2
"""How often a request may lose a group and go on elsewhere; one more ends it."""

RETRIES_MAX = {Reason.TRANSFER_FAILED: 2, Reason.KV_CHECKSUM: 1}
"""How often a request is computed anew for a reason before it ends by it.

One failed write may cost two attempts that it has nothing to do with: each side cuts the other off once.
Damage is a fault of the hardware: seen twice, it is not chance.
"""

log = logging.getLogger("tandem.router")


class _Clock(Protocol):
    """The part of an event loop that tells and keeps time."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


class Requests:
    """Opens, feeds and ends exchanges. `send(group, message)` is False when the message cannot leave.

    `again(route, work, without)` says where a request goes on that its groups had to give up, without these groups;
    it raises ApiError for nowhere.
    """

    def __init__(
        self,
        send: Callable[[str, ToGroup], bool],
        again: Callable[[Route, Work, Sequence[str]], Route],
        clock: _Clock,
        timeout_s: float,
        timer_scale: float = 1.0,
    ) -> None:
        self.quarantine = Quarantine()
        self.migrated = 0
        """Times that a request went on after it had lost a group."""
        self.quarantined = 0
        """Requests that were not tried again."""
        self._send = send
        self._again = again
        self._clock = clock
        self._timeout_s = timeout_s
        self._peer_wait_s = PEER_WAIT_S * timer_scale
        self._open: dict[RequestId, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, stream: Stream, *, deadline: float, streaming: bool) -> Exchange:
        """Send the work to the groups of its route."""
        unread_chars_max = UNREAD_CHARS if streaming else None
        exchange = Exchange(stream, self._clock.time(), deadline, unread_chars_max, self._on_abandoned)
        self._open[exchange.attempt.room.rid] = exchange
        exchange.timers.append(self._clock.call_at(deadline, lambda: self._on_deadline(exchange)))
        self._submit(exchange)
        return exchange

    def _submit(self, exchange: Exchange) -> None:
        attempt, now = exchange.attempt, self._clock.time()
        age_ms = int((now - exchange.opened) * 1000)
        remaining_ms = max(1, int((exchange.deadline - now) * 1000))
        for role, submit in attempt.submits(age_ms, remaining_ms):
            if not self._send(attempt.groups[role], submit):
                self._refused(exchange, attempt.groups[role], unsent(role, attempt.groups[role]))
                return

    def on_group(self, group: str) -> int:
        """Open requests that this group has a part of."""
        return sum(group in exchange.attempt.groups.values() for exchange in self._open.values())

    def on_message(self, group: str, message: Token | Done | Evicted) -> None:
        """What a group says. A room that is not open any more, or a group that does not work on it, is ignored."""
        exchange = self._open.get(message.room.rid)
        groups = exchange.attempt.groups if exchange else {}
        role = next((role for role, name in groups.items() if name == group), None)
        if exchange is None or role is None:
            return
        match message:
            case Token():
                self._on_token(exchange, role, message)
            case Done():
                self._on_done(exchange, role, message)
            case Evicted():
                self._on_evicted(exchange, message)

    def on_lost(self, group: str, cause: str, *, crashed: bool = True) -> None:
        """Every request that needs this group goes on elsewhere, or ends with the cause in its error.

        `crashed`: nobody had told it to end, so one of them may be the reason.
        """
        for exchange in list(self._open.values()):
            for role, name in exchange.attempt.groups.items():
                if name == group and exchange.stream.needs(role):
                    self._lose(exchange, role, group_lost(role, name, cause), crashed=crashed)

    def on_stall(self, error: ApiError) -> None:
        """The router did not run for so long that the groups have given its requests up: all are computed anew."""
        for exchange in list(self._open.values()):
            self._lose(exchange, next(iter(exchange.attempt.groups)), error, crashed=False)

    def fail_all(self, error: ApiError) -> None:
        """The router itself is going."""
        for exchange in list(self._open.values()):
            self._fail(exchange, error, Reason.CLIENT_GONE)

    def _on_token(self, exchange: Exchange, role: RoleName, token: Token) -> None:
        read = exchange.deliver(exchange.stream.on_token(role, token))
        end = exchange.end
        if isinstance(end, Finished):
            self._close(exchange, Reason.STOP_STRING if end.by_stop_string else None)
        elif end is not None:
            self._close(exchange, Reason.PEER_ENDED)
        elif not read:
            self._fail(exchange, slow_reader(), Reason.CLIENT_GONE)

    def _on_done(self, exchange: Exchange, role: RoleName, done: Done) -> None:
        stream = exchange.stream
        if done.room != exchange.attempt.room or not (stream.needs(role) or stream.awaits_reason):
            return
        name, reason = exchange.attempt.groups[role], done.reason
        if exchange.retries[reason] < RETRIES_MAX.get(reason, 0):
            exchange.retries[reason] += 1
            self._go_on(exchange, reason.value)
        elif reason is Reason.DRAINING or (reason is Reason.QUEUE_FULL and done.room.attempt > 1):
            self._refused(exchange, name, ended_with(reason, role, name))
        elif reason is Reason.CLIENT_GONE:  # the group has taken this router's silence for its end
            self._lose(exchange, role, ended_with(reason, role, name), crashed=False)
        else:
            stream.on_done(role, done)
            if stream.end is not None:
                self._close(exchange, Reason.PEER_ENDED)
            elif stream.awaits_reason:
                at, room = self._clock.time() + self._peer_wait_s, exchange.attempt.room
                exchange.timers.append(self._clock.call_at(at, lambda: self._on_no_reason(exchange, room, role)))

    def _on_no_reason(self, exchange: Exchange, room: Room, role: RoleName) -> None:
        """The group of this role blames its peer, which says nothing: it may have died before it could."""
        if exchange.end is not None or exchange.attempt.room != room:
            return
        groups = exchange.attempt.groups
        peer = next(other for other in groups if other is not role)
        exchange.avoided.append(groups[peer])
        self._lose(exchange, peer, ended_with(Reason.PEER_ENDED, role, groups[role]), crashed=False)

    def _on_evicted(self, exchange: Exchange, evicted: Evicted) -> None:
        """A group had to give the request's pages up."""
        if evicted.room != exchange.attempt.room:
            return
        exchange.evictions += 1
        if exchange.evictions > EVICTIONS_MAX:
            self._fail(exchange, overloaded(exchange.evictions), Reason.PEER_ENDED)
        else:
            self._go_on(exchange, "evicted")

    def _lose(self, exchange: Exchange, role: RoleName, error: ApiError, *, crashed: bool) -> None:
        """Its group of this role is lost to it."""
        name, losses = exchange.attempt.groups[role], exchange.losses
        losses.add(name, exchange.attempt.heads, exchange.count, crashed=crashed)
        if losses.suspicious:
            self.quarantined += 1
            self.quarantine.put(exchange.stream.work, self._clock.time())
            self._fail(exchange, quarantined(losses.crashed), Reason.PEER_ENDED)
        elif losses.count > LOSSES_MAX:
            self._fail(exchange, error, Reason.PEER_ENDED)
        elif self._go_on(exchange, error.message, error):
            self.migrated += 1

    def _refused(self, exchange: Exchange, name: str, error: ApiError) -> None:
        """A group did not take it. It is asked no more, so this comes to an end."""
        exchange.avoided.append(name)
        self._go_on(exchange, error.message, error)

    def _go_on(self, exchange: Exchange, why: str, failure: ApiError | None = None) -> bool:
        """Submit it anew, with the tokens that it has; where it cannot go on anywhere, the failure is its end."""
        attempt = exchange.attempt
        try:
            route = self._again(attempt.route, exchange.stream.remaining(), exchange.avoided)
        except ApiError as error:
            told = error if failure is None else stranded(failure, error)
            self._fail(exchange, told, Reason.PEER_ENDED)
            return False
        for name in attempt.groups.values():
            self._send(name, Cancel(attempt.room, Reason.PEER_ENDED))  # who has ended the room already ignores it
        exchange.stream.go_on(route)
        room = exchange.attempt.room
        log.info("request %s goes on after %d tokens on %s: %s", room, exchange.count, route, why)
        self._submit(exchange)
        return True

    def _on_abandoned(self, exchange: Exchange) -> None:
        self._fail(exchange, client_gone(), Reason.CLIENT_GONE)

    def _on_deadline(self, exchange: Exchange) -> None:
        self._fail(exchange, deadline_passed(self._timeout_s), Reason.DEADLINE)

    def _fail(self, exchange: Exchange, error: ApiError, reason: Reason) -> None:
        if exchange.end is None:
            exchange.stream.fail(error)
            self._close(exchange, reason)

    def _close(self, exchange: Exchange, cancel: Reason | None) -> None:
        """Strike it from the book. A group that has ended the room already ignores the Cancel.

        Any other one says its reason back: never call it GROUP_LOST, which would then be taken for true of itself.
        """
        room = exchange.attempt.room
        if self._open.pop(room.rid, None) is None:
            return
        if cancel is not None:
            for name in exchange.attempt.groups.values():
                self._send(name, Cancel(room, cancel))
        exchange.finish()
