"""Lets requests wait for their turn at the groups: `queue.Queue` on the loop, with clients that leave."""

import asyncio
from collections.abc import Callable

from starlette.types import Receive

from router.errors import ApiError, client_gone, deadline_passed, queue_full, queue_timeout
from router.queue import Queue, Ticket, Wish

LOOK_S = 0.1
"""How often the queue is looked at while somebody waits, and groups are asked how full they are."""


class Turns:
    """At most `begun_max` requests are at the groups: one that has begun in part counts once, and goes on beyond that.

    `fits` says whether these have room for a wish now; `hurry` is called every LOOK_S while somebody waits.
    """

    def __init__(
        self,
        queue: Queue,
        begun_max: int,
        request_s: float,
        fits: Callable[[Wish], bool],
        hurry: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.queue = queue
        self.begun = 0
        """Requests that had their turn and are not over."""
        self._begun_max = begun_max
        self._request_s = request_s  # for one request, from its first byte to its last
        self._fits = fits
        self._hurry = hurry
        self._loop = loop
        self._futures: dict[Ticket, asyncio.Future[float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._handing = False  # somebody has its turn and has not placed its request yet
        self._over: ApiError | None = None  # why nobody has a turn any more

    async def turn(self, tenant: str, wish: Wish, deadline: float, receive: Receive) -> float:
        """Wait for it; returns for how long. Who has it places its request before it awaits anything else, and calls
        `end` once it is over.

        Raises ApiError 408, 429, 503 or 504; 499 when the client leaves.
        """
        if self._over is not None and not wish.goes_on:
            raise self._over
        now = self._loop.time()
        if not len(self.queue) and not self._handing and self._free(wish):
            self.begun += not wish.goes_on
            return 0.0
        ticket, out = self.queue.join(tenant, wish, now, deadline)
        if out is not None and out is not ticket:
            self._refuse(out, self._full(now))
        if out is ticket:
            raise self._full(now)
        future = self._futures[ticket] = self._loop.create_future()
        self._arm()
        self.pump()
        return await self._wait(ticket, future, receive)

    def end(self) -> None:
        """Somebody who had its turn is done."""
        self.begun -= 1
        self.pump()

    def pump(self) -> None:
        """Give turns to whom there is room for now: one at a time, so that each is seen before the next one goes."""
        if self._handing or not len(self.queue):
            return
        now = self._loop.time()
        ticket = self.queue.take(now, lambda ticket: self._free(ticket.wish))
        if ticket is not None:
            self.begun += not ticket.wish.goes_on
            self._handing = True
            self._futures[ticket].set_result(now - ticket.arrived)

    def clear(self, error: ApiError, *, going_on: bool) -> None:
        """Nobody waits any more, nor will: whose body is still being understood would hold up the router's end.

        `going_on`: nor do those that have begun in part.
        """
        self._over = error
        for ticket in self.queue.clear(self._loop.time(), going_on=going_on):
            self._refuse(ticket, error)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def _wait(self, ticket: Ticket, future: asyncio.Future[float], receive: Receive) -> float:
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((future, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise client_gone()
            queued_s = future.result()
        except BaseException:
            self.queue.leave(ticket, self._loop.time())
            if future.done() and not future.cancelled() and future.exception() is None:
                self.begun -= not ticket.wish.goes_on  # it had its turn and was stopped in the same moment
                self._handed()
            raise
        finally:
            leaving.cancel()
            del self._futures[ticket]
        self._loop.call_soon(self._handed)
        return queued_s

    def _handed(self) -> None:
        self._handing = False
        self.pump()

    def _free(self, wish: Wish) -> bool:
        return (wish.goes_on or self.begun < self._begun_max) and self._fits(wish)

    def _full(self, now: float) -> ApiError:
        return queue_full(len(self.queue), self.queue.retry_after_s(now))

    def _refuse(self, ticket: Ticket, error: ApiError) -> None:
        future = self._futures[ticket]
        if not future.done():
            future.set_exception(error)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for ticket in self.queue.expire(now):
            if ticket.deadline == ticket.request_deadline:
                self._refuse(ticket, deadline_passed(self._request_s))
            else:
                self._refuse(ticket, queue_timeout(now - ticket.arrived, self.queue.retry_after_s(now)))
        if len(self.queue):
            self._hurry()
            self.pump()
            self._arm()


async def _left(receive: Receive) -> None:
    """The body is complete: all that can still come is the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
