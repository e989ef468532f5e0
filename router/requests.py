"""The book of open requests: every message of a group finds its request here, and every request ends here once."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from router.errors import ApiError, client_gone, deadline_passed, group_lost, slow_reader
from router.placement import Pair
from router.stream import Failed, Finished, Stream
from tandem.core.config import RoleName
from tandem.core.ids import RequestId, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Cancel, Done, ToGroup, Token
from tandem.core.requests import Reason, Work

PEER_WAIT_S = 2.0
"""How long one group's PEER_ENDED waits for the other group's real reason."""

UNREAD_CHARS = 256 * 1024
"""Text kept behind a connection whose own buffers are full; more ends the request."""

UNREAD_PIECES = 64
"""Unread pieces kept apart; later ones are joined, since each costs memory of its own."""


class _Clock(Protocol):
    """The part of an event loop that tells and keeps time."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


class Exchange:
    """One open request: the book delivers text and then finishes it, its HTTP handler takes both or abandons it."""

    def __init__(
        self,
        room: Room,
        groups: dict[RoleName, str],
        stream: Stream,
        unread_chars_max: int | None,
        on_abandoned: Callable[["Exchange"], None],
    ) -> None:
        self.room = room
        self.groups = groups
        self.stream = stream
        self.timers: list[asyncio.TimerHandle] = []
        """Cancelled when it is finished."""
        self._pieces: list[str] = []
        self._unread_chars = 0
        self._unread_chars_max = unread_chars_max
        self._news = asyncio.Event()
        self._on_abandoned = on_abandoned

    @property
    def end(self) -> Finished | Failed | None:
        """How it ended. Text may still be there to take."""
        return self.stream.end

    @property
    def count(self) -> int:
        """Tokens generated so far."""
        return self.stream.count

    def take(self) -> list[str]:
        """The text that came since the last call, a piece for each token where the client keeps up."""
        pieces, self._pieces, self._unread_chars = self._pieces, [], 0
        self._news.clear()
        return pieces

    async def ended(self) -> None:
        """Wait for the end, however it comes: the deadline is one."""
        while self.end is None:
            await self._news.wait()
            self._news.clear()

    async def news(self, timeout_s: float) -> None:
        """Wait for text or the end, at most `timeout_s`."""
        if self._pieces or self.end is not None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    def abandon(self) -> None:
        """Nobody will read the rest. Does nothing after the end."""
        self._on_abandoned(self)

    def deliver(self, text: str) -> bool:
        """False when the client has not read more than it may leave unread."""
        if not text:
            return True
        if len(self._pieces) < UNREAD_PIECES or self._unread_chars_max is None:
            self._pieces.append(text)
        else:
            self._pieces[-1] += text
        self._unread_chars += len(text)
        self._news.set()
        return self._unread_chars_max is None or self._unread_chars <= self._unread_chars_max

    def finish(self) -> None:
        """The end is set: no timer is needed any more, and whoever waits wakes."""
        for timer in self.timers:
            timer.cancel()
        self._news.set()


class Requests:
    """Opens, feeds and ends exchanges. `send(group, message)` is False when the message cannot leave."""

    def __init__(
        self, send: Callable[[str, ToGroup], bool], clock: _Clock, timeout_s: float, timer_scale: float = 1.0
    ) -> None:
        self._send = send
        self._clock = clock
        self._timeout_s = timeout_s
        self._peer_wait_s = PEER_WAIT_S * timer_scale
        self._open: dict[RequestId, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, work: Work, pair: Pair, stream: Stream, *, deadline: float, streaming: bool) -> Exchange:
        """Send the work to both groups of the pair, or to prefill alone when one token is all that is wanted."""
        groups = groups_of(work, pair)
        exchange = Exchange(work.room, groups, stream, UNREAD_CHARS if streaming else None, self._on_abandoned)
        self._open[work.room.rid] = exchange
        remaining_ms = max(1, int((deadline - self._clock.time()) * 1000))
        exchange.timers.append(self._clock.call_at(deadline, lambda: self._on_deadline(exchange)))
        # Decode first: it is to know the room by the time prefill has something to hand over.
        for role in (RoleName.DECODE, RoleName.PREFILL):
            if role not in groups:
                continue
            peer = next((name for other, name in groups.items() if other is not role), None)
            submit = Submit(msgspec.structs.replace(work, peer=peer), remaining_ms)
            if not self._send(groups[role], submit):
                self._fail(exchange, group_lost(role, groups[role], "its queue is full"), Reason.GROUP_LOST)
                break
        return exchange

    def on_message(self, group: str, message: Token | Done) -> None:
        """What a group says. A room that is not open any more, or a group that is none of its pair, is ignored."""
        exchange = self._open.get(message.room.rid)
        role = next((role for role, name in exchange.groups.items() if name == group), None) if exchange else None
        if exchange is None or role is None:
            return
        if isinstance(message, Token):
            self._on_token(exchange, role, message)
        else:
            self._on_done(exchange, role, message)

    def on_lost(self, group: str, cause: str) -> None:
        """Every request that needs this group ends now, with the cause in its error."""
        for exchange in list(self._open.values()):
            for role, name in exchange.groups.items():
                needed = role is RoleName.DECODE or not exchange.stream.handed_over
                if name == group and needed:
                    self._fail(exchange, group_lost(role, name, cause), Reason.GROUP_LOST)

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
            self._close(exchange, Reason.GROUP_LOST)
        elif not read:
            self._fail(exchange, slow_reader(), Reason.CLIENT_GONE)

    def _on_done(self, exchange: Exchange, role: RoleName, done: Done) -> None:
        stream = exchange.stream
        stream.on_done(role, done)
        if stream.end is not None:
            self._close(exchange, Reason.PEER_ENDED)
        elif stream.awaits_reason:
            at = self._clock.time() + self._peer_wait_s
            exchange.timers.append(self._clock.call_at(at, lambda: self._on_no_reason(exchange)))

    def _on_no_reason(self, exchange: Exchange) -> None:
        exchange.stream.no_reason_came()
        self._close(exchange, Reason.PEER_ENDED)

    def _on_abandoned(self, exchange: Exchange) -> None:
        self._fail(exchange, client_gone(), Reason.CLIENT_GONE)

    def _on_deadline(self, exchange: Exchange) -> None:
        self._fail(exchange, deadline_passed(self._timeout_s), Reason.DEADLINE)

    def _fail(self, exchange: Exchange, error: ApiError, reason: Reason) -> None:
        if exchange.end is None:
            exchange.stream.fail(error)
            self._close(exchange, reason)

    def _close(self, exchange: Exchange, cancel: Reason | None) -> None:
        """Strike it from the book. A group that has ended the room already ignores the Cancel."""
        if self._open.pop(exchange.room.rid, None) is None:
            return
        if cancel is not None:
            for name in exchange.groups.values():
                self._send(name, Cancel(exchange.room, cancel))
        exchange.finish()


def groups_of(work: Work, pair: Pair) -> dict[RoleName, str]:
    """The groups that a request needs: token 0 is prefill's."""
    prefill, decode = pair.names
    if work.max_tokens == 1:
        return {RoleName.PREFILL: prefill}
    return {RoleName.PREFILL: prefill, RoleName.DECODE: decode}
