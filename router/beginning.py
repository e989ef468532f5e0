"""How a request begins: its body is understood, and each of its choices is sent to a route."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Scope

from router.asked import Asked, work_of
from router.attempt import Attempt
from router.choices import Choices
from router.errors import ApiError, client_gone, deadline_passed, shutting_down, still_quarantined
from router.line import line_of, nothing
from router.ports import Model
from router.queue import Wish
from router.reader import Reader
from router.service import Service
from router.stream import Stream
from tandem.core.ids import RequestId, Room

INLINE_BYTES = 8 * 1024
"""A longer body is parsed and tokenised on a thread, so that it does not hold up everybody's tokens."""
GRAMMAR = b'"response_format"'
"""So is one with a schema to compile."""

TURN_CHOICES = 8
"""Choices of a request that begin in one turn; the others wait for the next, so that a wide request blocks nobody."""

R = TypeVar("R")


class Beginning:
    """Lives on the loop's thread."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def read(self, read: Callable[[bytes, Model], R], payload: bytes, deadline: float, scope: Scope) -> R:
        """Understand a body. Raises ApiError; waiting for a thread counts against the deadline.

        A client that leaves meanwhile waits no more, and its body for no thread.
        """
        model = self.service.model
        if len(payload) <= INLINE_BYTES and GRAMMAR not in payload:
            return read(payload, model)
        line = line_of(scope)
        reading = asyncio.get_running_loop().run_in_executor(self.service.pool, read, payload, model)
        line.when_gone(lambda: _cancel(reading))
        try:
            async with asyncio.timeout_at(deadline):
                return await reading
        except TimeoutError:
            raise deadline_passed(self.service.rules.request_timeout_s) from None
        except asyncio.CancelledError:
            if line.gone:
                raise client_gone() from None
            raise
        finally:
            line.when_gone(nothing)

    def open(self, ask: Asked, rid: RequestId, deadline: float) -> Choices:
        """Send the work of the first choices to a route each. Raises ApiError, and then none goes on."""
        if self.service.draining:
            raise shutting_down()
        choices = Choices(ask.choices, Reader(streaming=ask.streaming))
        try:
            self.open_more(choices, ask, rid, deadline)
            _check_longest(ask, choices)
        except ApiError:
            choices.abandon()
            raise
        return choices

    def open_more(self, choices: Choices, ask: Asked, rid: RequestId, deadline: float) -> None:
        """The same for those that come next; after an ApiError the caller ends all, by its reason."""
        requests, opened = self.service.requests, choices.exchanges
        for index in next_of(ask, len(opened)):
            stream = self._stream(ask, rid, index)
            opened.append(requests.open(stream, deadline=deadline, reader=choices.reader, index=index))

    def _stream(self, ask: Asked, rid: RequestId, index: int) -> Stream:
        service, model = self.service, self.service.model
        route = service.dispatch.place(ask.prompts[index // ask.n], ask.salt)
        work = work_of(ask, Room(RequestId(rid + index), 1), route, index)
        if wait_s := service.requests.quarantine.left_s(work, asyncio.get_running_loop().time()):
            raise still_quarantined(wait_s)
        return Stream(Attempt(work, route), model.vocab, model.tokenizer.detokenizer(), ask.stops)


def _cancel(reading: "asyncio.Future[R]") -> None:
    reading.cancel()


def _check_longest(ask: Asked, choices: Choices) -> None:
    """Raises ApiError for a prompt that fits nowhere, though its turn is still to come: that is no end of a stream."""
    longest = max(range(len(ask.prompts)), key=lambda number: len(ask.prompts[number]))
    if longest * ask.n >= len(choices.exchanges):
        attempt = choices.exchanges[0].attempt
        work_of(ask, attempt.room, attempt.route, longest * ask.n)


def next_of(ask: Asked, begun: int) -> range:
    """The choices that begin together when so many have begun."""
    return range(begun, min(begun + TURN_CHOICES, ask.choices))


def wish_of(ask: Asked, begun: int) -> Wish:
    """What they ask of the groups."""
    indices = next_of(ask, begun)
    tokens = sum([len(ask.prompts[index // ask.n]) for index in indices])
    return Wish(tokens, len(indices), ask.priority, goes_on=begun > 0)
