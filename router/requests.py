"""The book of open requests: every message of a group finds its request here, and every request ends here once."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from router.attempt import Attempt
from router.breakers import Key
from router.budget import RetryBudget
from router.errors import (
    ApiError,
    answer_too_large,
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
from router.exchange import Exchange, Timer
from router.placement import Route
from router.quarantine import Quarantine
from router.reader import Reader
from router.stream import Finished, Stream
from tandem.core.config import RETRIES_MAX, RoleName
from tandem.core.figures import Histogram
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Cancel, Done, Evicted, Portion, ToGroup, Token
from tandem.core.requests import Reason, Work
from tandem.runtime.metrics_table import NEXT_TOKEN_S

PEER_WAIT_S = 2.0
"""How long one group's PEER_ENDED waits for the other group's real reason."""

EVICTIONS_MAX = 8
"""How often one request may lose its pages and be computed anew; one more ends it."""

LOSSES_MAX = 2
"""How often a request may lose a group and go on elsewhere; one more ends it."""


REASON_RETRIES_MAX = {Reason.TRANSFER_FAILED: 2, Reason.KV_CHECKSUM: 1}
"""How often a request is computed anew for a reason before it ends by it.

One failed write may cost two attempts that it has nothing to do with: each side cuts the other off once.
Damage is a fault of the hardware: seen twice, it is not chance.
"""

log = logging.getLogger("tandem.router")


class Clock(Protocol):
    """The part of an event loop that tells and keeps time."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Journeys(Protocol):
    """Hears what becomes of attempts, in this order; one that ended may have been computed or not."""

    def sent(self, attempt: Attempt) -> None:
        """Its groups get it now."""

    def computed(self, room: Room) -> None:
        """Its first token is here."""

    def ended(self, attempt: Attempt, faulty: Key, *, well: bool) -> None:
        """Nobody works on it any more. `faulty`: the group or the edge that is to blame."""


class Requests:
    """Opens, feeds and ends exchanges. `send(group, message)` is False when the message cannot leave.

    `again(route, work, without, doubted)` says where a request goes on that its groups had to give up: without some
    groups, and with as few doubts as can be; it raises ApiError for nowhere.
    """

    def __init__(
        self,
        send: Callable[[str, ToGroup], bool],
        again: Callable[[Route, Work, Sequence[str], Mapping[str, int]], Route],
        clock: Clock,
        timeout_s: float,
        timer_scale: float = 1.0,
        *,
        journeys: Journeys,
        budget: RetryBudget,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        self.budget = budget
        self.quarantine = Quarantine()
        self.migrated = 0
        """Times that a request went on after it had lost a group."""
        self.quarantined = 0
        """Requests that were not tried again."""
        self.retried = 0
        """Times that a request was computed anew because its hand-over had failed."""
        self.gaps = Histogram(NEXT_TOKEN_S)
        """Seconds between two tokens."""
        self._send = send
        self._again = again
        self._clock = clock
        self._timeout_s = timeout_s
        self._peer_wait_s = PEER_WAIT_S * timer_scale
        self._journeys = journeys
        self._retries_max = retries_max
        self._open: dict[RequestId, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, stream: Stream, *, deadline: float, reader: Reader, index: int = 0) -> Exchange:
        """Send the work to the groups of its route. `index`: of this choice of the answer that `reader` reads."""
        exchange = Exchange(stream, self._clock.time, deadline, reader, index, self._on_abandoned, self.gaps)
        self._open[exchange.attempt.room.rid] = exchange
        exchange.timers.append(self._clock.call_at(deadline, lambda: self._on_deadline(exchange)))
        self.budget.on_request(self._clock.time())
        self._submit(exchange)
        return exchange

    def _submit(self, exchange: Exchange) -> None:
        attempt, now = exchange.attempt, self._clock.time()
        age_ms = int((now - exchange.opened) * 1000)
        remaining_ms = max(1, int((exchange.deadline - now) * 1000))
        self._journeys.sent(attempt)
        for name, submit in attempt.submits(age_ms, remaining_ms, whole=exchange.whole):
            if not self._send(name, submit):
                self._refused(exchange, name, unsent(attempt.roles[name], name), faulty=(name,))
                return

    def on_group(self, group: str) -> int:
        """Open requests that this group has a part of."""
        return sum(group in exchange.attempt.groups.values() for exchange in self._open.values())

    def on_message(self, group: str, message: Token | Portion | Done | Evicted) -> None:
        """What a group says. A room that is not open any more, or a group that does not work on it, is ignored."""
        exchange = self._open.get(message.room.rid)
        role = exchange.stream.attempt.roles.get(group) if exchange is not None else None
        if exchange is None or role is None:
            return
        match message:
            case Token():
                if message.index == 0:
                    self._journeys.computed(message.room)
                self._on_text(exchange, role, exchange.stream.on_token(role, message))
            case Portion():
                self._on_text(exchange, role, exchange.stream.on_portion(role, message))
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

    def abort(self, rids: Iterable[RequestId], error: ApiError) -> int:
        """End those of these that are open, and count them."""
        exchanges = [exchange for rid in rids if (exchange := self._open.get(rid)) is not None]
        for exchange in exchanges:
            self._fail(exchange, error, Reason.ABORTED)
        return len(exchanges)

    def fail_all(self, error: ApiError) -> None:
        """The router itself is going."""
        for exchange in list(self._open.values()):
            self._fail(exchange, error, Reason.CLIENT_GONE)

    def _on_text(self, exchange: Exchange, role: RoleName, text: str) -> None:
        """What new tokens come to. It may be empty, and the end all the same."""
        read = exchange.deliver(text)
        end = exchange.stream.end
        if isinstance(end, Finished):
            self._close(exchange, Reason.STOP_STRING if end.by_stop_string else None)
        elif end is not None:
            self._close(exchange, Reason.PEER_ENDED, faulty=(exchange.attempt.groups[role],))
        elif not read:
            error = slow_reader() if exchange.reader.streaming else answer_too_large()
            self._fail(exchange, error, Reason.CLIENT_GONE)

    def _on_done(self, exchange: Exchange, role: RoleName, done: Done) -> None:
        stream = exchange.stream
        if done.room != exchange.attempt.room or not (stream.needs(role) or stream.awaits_reason):
            return
        name, reason = exchange.attempt.groups[role], done.reason
        faulty = tuple(exchange.attempt.groups.values()) if reason in REASON_RETRIES_MAX else ()
        if self._spend_retry(exchange, reason):
            delay_s = self.budget.delay_s(exchange.retries.total())
            exchange.retries[reason] += 1
            self.retried += 1
            exchange.doubted.update(exchange.attempt.groups.values())
            self._go_on(exchange, reason.value, faulty=faulty, delay_s=delay_s)
        elif reason is Reason.DRAINING or (reason is Reason.QUEUE_FULL and done.room.attempt > 1):
            self._refused(exchange, name, ended_with(reason, role, name))
        elif reason is Reason.CLIENT_GONE:  # the group has taken this router's silence for its end
            self._lose(exchange, role, ended_with(reason, role, name), crashed=False)
        else:
            stream.on_done(role, done)
            if stream.end is not None:
                self._close(exchange, Reason.PEER_ENDED, faulty=faulty)
            elif stream.awaits_reason:
                at, room = self._clock.time() + self._peer_wait_s, exchange.attempt.room
                exchange.timers.append(self._clock.call_at(at, lambda: self._on_no_reason(exchange, room, role)))

    def _spend_retry(self, exchange: Exchange, reason: Reason) -> bool:
        """One more, if the request, its reason and the budget have one left."""
        retries = exchange.retries
        allowed = retries[reason] < REASON_RETRIES_MAX.get(reason, 0) and retries.total() < self._retries_max
        return allowed and self.budget.spend(self._clock.time())

    def _on_no_reason(self, exchange: Exchange, room: Room, role: RoleName) -> None:
        """The group of this role blames its peer, which says nothing: it may have died before it could."""
        if exchange.end is not None or exchange.attempt.room != room:
            return
        groups = exchange.attempt.groups
        peer = next(other for other in groups if other is not role)
        exchange.avoided.append(groups[peer])
        silent = ended_with(Reason.PEER_ENDED, role, groups[role])
        self._lose(exchange, peer, silent, crashed=False, faulty=(groups[peer],))

    def _on_evicted(self, exchange: Exchange, evicted: Evicted) -> None:
        """A group had to give the request's pages up."""
        if evicted.room != exchange.attempt.room:
            return
        exchange.evictions += 1
        if exchange.evictions > EVICTIONS_MAX:
            self._fail(exchange, overloaded(exchange.evictions), Reason.PEER_ENDED)
        else:
            self._go_on(exchange, "evicted")

    def _lose(self, exchange: Exchange, role: RoleName, error: ApiError, *, crashed: bool, faulty: Key = ()) -> None:
        """Its group of this role is lost to it."""
        name, losses = exchange.attempt.groups[role], exchange.losses
        losses.add(name, exchange.attempt.heads, exchange.count, crashed=crashed)
        if losses.suspicious:
            self.quarantined += 1
            self.quarantine.put(exchange.stream.work, self._clock.time())
            self._fail(exchange, quarantined(losses.crashed), Reason.PEER_ENDED)
        elif losses.count > LOSSES_MAX:
            self._fail(exchange, error, Reason.PEER_ENDED)
        elif self._go_on(exchange, error.message, error, faulty=faulty):
            self.migrated += 1

    def _refused(self, exchange: Exchange, name: str, error: ApiError, faulty: Key = ()) -> None:
        """A group did not take it. It is asked no more, so this comes to an end."""
        exchange.avoided.append(name)
        self._go_on(exchange, error.message, error, faulty=faulty)

    def _go_on(
        self, exchange: Exchange, why: str, failure: ApiError | None = None, *, faulty: Key = (), delay_s: float = 0.0
    ) -> bool:
        """Submit it anew, with the tokens that it has; where it cannot go on anywhere, the failure is its end."""
        attempt = exchange.attempt
        self._journeys.ended(attempt, faulty, well=False)
        try:
            route = self._again(attempt.route, exchange.stream.remaining(), exchange.avoided, exchange.doubted)
        except ApiError as error:
            told = error if failure is None else stranded(failure, error)
            self._fail(exchange, told, Reason.PEER_ENDED)
            return False
        for name in attempt.groups.values():
            self._send(name, Cancel(attempt.room, Reason.PEER_ENDED))  # who has ended the room already ignores it
        exchange.stream.go_on(route)
        room = exchange.attempt.room
        log.info("request %s goes on after %d tokens on %s: %s", room, exchange.count, route, why)
        if delay_s:
            at = self._clock.time() + delay_s
            exchange.timers.append(self._clock.call_at(at, lambda: self._submit_late(exchange, room)))
        else:
            self._submit(exchange)
        return True

    def _submit_late(self, exchange: Exchange, room: Room) -> None:
        if exchange.end is None and exchange.attempt.room == room:
            self._submit(exchange)

    def _on_abandoned(self, exchange: Exchange) -> None:
        self._fail(exchange, client_gone(), Reason.CLIENT_GONE)

    def _on_deadline(self, exchange: Exchange) -> None:
        self._fail(exchange, deadline_passed(self._timeout_s), Reason.DEADLINE)

    def _fail(self, exchange: Exchange, error: ApiError, reason: Reason) -> None:
        if exchange.end is None:
            exchange.stream.fail(error)
            self._close(exchange, reason)

    def _close(self, exchange: Exchange, cancel: Reason | None, faulty: Key = ()) -> None:
        """Strike it from the book. A group that has ended the room already ignores the Cancel.

        Any other one says its reason back: never call it GROUP_LOST, which would then be taken for true of itself.
        """
        room = exchange.attempt.room
        if self._open.pop(room.rid, None) is None:
            return
        self._journeys.ended(exchange.attempt, faulty, well=isinstance(exchange.end, Finished))
        if cancel is not None:
            for name in exchange.attempt.groups.values():
                self._send(name, Cancel(room, cancel))
        exchange.finish()
