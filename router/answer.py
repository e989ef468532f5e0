"""One HTTP request from its first byte to its last: read the body, send the work, write what comes back."""

import asyncio
import logging
from collections.abc import Callable

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from router.asked import Asked
from router.beginning import TURN_CHOICES, Beginning, wish_of
from router.choices import Choices
from router.errors import ApiError, client_gone, internal
from router.format import Dialect, Format
from router.line import Line, line_of, nothing
from router.place import Place
from router.reply import Reply, body_of
from router.stream import FINISHED, Failed, Finished
from router.streaming import Streaming
from router.timing import server_timing
from router.tracing import parent_of, told_of
from tandem.core.ids import RequestId

JSON_HEAD = b"content-type: application/json\r\n"
STREAM_HEAD = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"

log = logging.getLogger("tandem.router")


class Answer(Response):
    """An ASGI response that does all the work when it is called, with the client's line at hand."""

    def __init__(self, beginning: Beginning, dialect: Dialect) -> None:
        super().__init__()
        self._beginning = beginning
        self._service = beginning.service
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError before the first byte; after it, the error is the stream's last event."""
        state = scope["state"]
        rid: RequestId = state["rid"]
        rules, clock = self._service.rules, asyncio.get_running_loop().time
        deadline = clock() + rules.request_timeout_s
        with self._service.reading():
            payload = await read_body(scope, receive, rules.max_payload_bytes, rules.body_timeout_s)
        if payload is None:
            return None
        arrived = clock()
        with self._service.admission(scope, receive) as place:
            try:
                ask = await self._beginning.read(self._dialect.read, payload, deadline, scope)
            except ApiError as error:
                return _raise_if_read(error)
            if place.tenant.name:
                ask = msgspec.structs.replace(ask, salt=self._service.doors.salt(place.tenant, ask.salt))
            try:
                await place.turn(wish_of(ask, 0), deadline)
            except ApiError as error:
                log.info("request %016x on no group: %d prompts waited, %s", rid, len(ask.prompts), error.code)
                self._service.metrics.left(error.code)
                return _raise_if_read(error)
            if place.queued_s:
                self._service.recalled.waited(rid, ask.choices, place.queued_s)
            choices = self._beginning.open(ask, rid, deadline)
            line = line_of(scope)
            line.when_gone(choices.abandon)
            form = Format(self._dialect, rid, self._service.model, ask)
            reply = Reply(scope)

            def timing() -> bytes:
                return b"server-timing: %b\r\n" % server_timing(choices, arrived, place.queued_s)

            rest = self._rest(choices, ask, rid, deadline, place) if ask.choices > TURN_CHOICES else None
            others = None if rest is None else asyncio.create_task(rest)
            try:
                await (self._stream if ask.streaming else self._whole)(choices, form, line, reply, timing)
            finally:
                if others is not None:
                    others.cancel()
                choices.abandon()
                choices.listen(nothing)  # who listened knows them: a cycle, which would have to be collected
                line.when_gone(nothing)
                place.spend(choices.count)
                how = outcome(choices)
                if how not in FINISHED:
                    self._service.recalled.failed(rid, ask.choices, how)
                self._service.metrics.over(prompt_tokens := sum(map(len, ask.prompts)), choices, arrived, how)
                if self._service.tracing is not None:
                    told = told_of(choices, prompt_tokens, arrived, place.queued_s, how)
                    self._service.tracing.over(told, choices, parent_of(scope))
                _log(rid, state.get("label"), ask, choices, how)

    async def _rest(self, choices: Choices, ask: Asked, rid: RequestId, deadline: float, place: Place) -> None:
        """The choices that did not begin in the first turn: each portion waits for one of its own."""
        try:
            while (begun := len(choices.exchanges)) < ask.choices:
                await place.turn(wish_of(ask, begun), deadline)
                if choices.abandoned:  # in the moment of its turn, and perhaps when all that had begun were over
                    raise client_gone()
                self._beginning.open_more(choices, ask, rid, deadline)
        except ApiError as error:
            choices.fail(error)
        except Exception:
            log.exception("request %016x failed inside the router", rid)
            choices.fail(internal())

    async def _whole(
        self, choices: Choices, form: Format, line: Line, reply: Reply, timing: Callable[[], bytes]
    ) -> None:
        await choices.finish()
        if choices.failure is not None:
            return _raise_if_read(choices.failure)
        if await self._reads(line, choices):
            reply.whole(JSON_HEAD + timing(), form.whole(choices))
        return None

    async def _stream(
        self, choices: Choices, form: Format, line: Line, reply: Reply, timing: Callable[[], bytes]
    ) -> None:
        rules = self._service.rules
        streaming = Streaming(choices, form, line, rules.ping_s, rules.stalled_write_s)
        failure = await streaming.begin()
        if failure is not None:
            return _raise_if_read(failure)
        if await self._reads(line, choices):
            reply.begin(STREAM_HEAD + timing())
            last = await streaming.rest()
            if await self._reads(line, choices):
                reply.end(last)
        return None

    async def _reads(self, line: Line, choices: Choices) -> bool:
        """False when the client has not read for so long that its connection is worth no more memory."""
        if not line.paused:
            return True
        try:
            async with asyncio.timeout(self._service.rules.stalled_write_s):
                await line.drain()
        except TimeoutError:
            choices.abandon()
            line.abort()
            return False
        return True


def _raise_if_read(error: ApiError) -> None:
    """A client that is gone gets no answer, and needs none."""
    if error.status != 499:
        raise error


async def read_body(scope: Scope, receive: Receive, bytes_max: int, timeout_s: float) -> bytes | None:
    """The body; None when the client left. Raises ApiError 408, 413 or 415, and reads no further then."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ApiError(415, "unsupported_media_type", "send the body as content-type application/json")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > bytes_max:
        raise _too_big(bytes_max)
    whole = body_of(scope)
    if whole is not None:
        if len(whole) > bytes_max:
            raise _too_big(bytes_max)
        return whole
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if len(body) > bytes_max:
                    raise _too_big(bytes_max)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise ApiError(408, "body_timeout", f"the body did not arrive within {timeout_s:g} s") from None


def _too_big(bytes_max: int) -> ApiError:
    return ApiError(413, "request_too_large", f"the body is larger than {bytes_max} bytes")


def _log(rid: RequestId, label: str | None, ask: Asked, choices: Choices, how: str) -> None:
    """One line for each request, without a word of what it said. `label` is what its client calls it."""
    first = choices.exchanges[0]
    counts = (sum(map(len, ask.prompts)), choices.count)
    called = "" if label is None else f" ({label!r})"
    log.info("request %016x%s on %s: %d + %d tokens, %s", rid, called, first.attempt.route, *counts, how)


def outcome(choices: Choices) -> str:
    """How a request ended, in one word for the log; of several choices that went well, the first one's."""
    if choices.failure is not None:
        return choices.failure.code
    match choices.exchanges[0].end:
        case None:
            return "client_gone"
        case Failed(error=error):
            return error.code
        case Finished(reason=reason):
            return reason
