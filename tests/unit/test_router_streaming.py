"""A stream on its way to a client: events go at once, and what the client does not take waits, but not for ever."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from desk import Desk

from router.asked import Asked
from router.choices import Choices
from router.completions import Completions
from router.format import DONE, PING, Format
from router.line import Line
from router.ports import Model
from router.streaming import Streaming
from tandem.core.ids import RequestId
from tandem.core.requests import Sampling

ASK = Asked(((1,),), "prompt", 1, 9, "max_tokens", Sampling(), (), (), True, False, 0, "")
NEVER_S = 1000.0


class Wire:
    """A transport and its flow control: what was written, and whether the client reads."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write_paused = False
        self.aborted = False
        self.write = self.written.append

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Told:
    """One stream of up to three tokens, its client and its groups."""

    def __init__(self, ping_s: float = NEVER_S, stalled_s: float = NEVER_S) -> None:
        self.desk = Desk(max_tokens=3)
        self.wire = Wire()
        self.line = Line(self.wire, self.wire)
        choices = Choices(1, self.desk.exchange.reader)
        choices.exchanges.append(self.desk.exchange)
        form = Format(Completions(), RequestId(1), Model("m", 257, None), ASK)
        self.line.write(b"head\r\n")
        self.streaming = Streaming(choices, form, self.line, ping_s, stalled_s)

    async def begun(self) -> "asyncio.Task[bytes]":
        """After its first token, with everything behind it on its way."""
        self.desk.token("p0", 0)
        assert await self.streaming.begin() is None
        rest = asyncio.create_task(self.streaming.rest())
        await rounds()
        return rest

    def resume(self) -> None:
        self.wire.write_paused = False
        self.line.resumed()

    @property
    def texts(self) -> list[str]:
        """Of the events that were written, by write."""
        return [text_of(chunk.removeprefix(b"head\r\n").split(b"\r\n")[1]) for chunk in self.wire.written]


def text_of(events: bytes) -> str:
    data = [event.removeprefix(b"data: ") for event in events.split(b"\n\n") if event.startswith(b"data: {")]
    return "".join(json.loads(each)["choices"][0]["text"] for each in data)


async def rounds() -> None:
    """All that is on the loop has its turn."""
    for _ in range(5):
        await asyncio.sleep(0)


def tell(story: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(within())


def test_each_token_is_written_when_it_comes_and_the_last_one_with_the_end():
    async def story() -> None:
        told = Told()
        rest = await told.begun()
        told.desk.token("d0", 1)
        await rounds()
        assert told.texts == ["A", "A"]
        told.desk.token("d0", 2)
        last = await rest
        assert (text_of(last), last.endswith(DONE)) == ("A", True)
        assert len(told.wire.written) == 2

    tell(story)


def test_what_comes_while_the_head_is_sent_goes_with_the_first_write():
    async def story() -> None:
        told = Told()
        told.desk.token("p0", 0)
        assert await told.streaming.begin() is None
        told.desk.token("d0", 1)
        rest = asyncio.create_task(told.streaming.rest())
        await rounds()
        assert told.texts == ["AA"]
        told.desk.token("d0", 2)
        assert text_of(await rest) == "A"

    tell(story)


def test_a_failure_before_the_first_news_is_told_to_who_begins():
    async def story() -> None:
        told = Told()
        told.desk.exchange.abandon()
        failure = await told.streaming.begin()
        assert failure is not None
        assert failure.status == 499

    tell(story)


def test_a_client_that_does_not_read_is_written_nothing_until_it_does():
    async def story() -> None:
        told = Told()
        rest = await told.begun()
        told.wire.write_paused = True
        told.desk.token("d0", 1)
        told.desk.token("d0", 2)
        await rounds()
        assert told.texts == ["A"]
        assert not rest.done()
        told.resume()
        assert text_of(await rest) == "AA"

    tell(story)


def test_a_client_that_does_not_read_for_too_long_is_cut_off():
    async def story() -> None:
        told = Told(stalled_s=0.01)
        rest = await told.begun()
        told.wire.write_paused = True
        told.desk.token("d0", 1)
        await rest
        assert told.wire.aborted
        assert told.desk.code() == "client_gone"

    tell(story)


def test_a_client_that_leaves_unread_text_behind_is_waited_for_no_more():
    async def story() -> None:
        told = Told()
        told.line.when_gone(told.desk.exchange.abandon)
        rest = await told.begun()
        told.wire.write_paused = True
        told.desk.token("d0", 1)
        await rounds()
        told.wire.write_paused = False
        told.line.lost()
        await rest
        assert told.desk.code() == "client_gone"

    tell(story)


def test_a_bug_while_an_event_is_made_ends_the_stream():
    async def story() -> None:
        told = Told()
        rest = await told.begun()
        told.streaming._form = None
        told.desk.token("d0", 1)
        with pytest.raises(AttributeError):
            await rest

    tell(story)


def test_a_client_that_was_gone_before_anybody_asked_is_gone():
    line, told = Line(Wire(), Wire()), []
    line.lost()
    line.when_gone(lambda: told.append("gone"))
    assert told == ["gone"]


def test_a_head_leaves_with_what_follows_it():
    wire = Wire()
    line = Line(wire, wire)
    for data in (b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK", b"one", b"two"):
        line.write(data)
    assert wire.written == [b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OKone", b"two"]


def test_a_head_that_nothing_follows_leaves_with_the_end():
    wire = Wire()
    line = Line(wire, wire)
    line.write(b"HTTP/1.1 204 No Content")
    assert wire.written == []
    line.flush()
    line.flush()
    assert wire.written == [b"HTTP/1.1 204 No Content"]


def test_silence_is_broken_by_pings():
    async def story() -> None:
        told = Told(ping_s=0.01)
        rest = await told.begun()
        while len(told.wire.written) < 3:
            await asyncio.sleep(0)
        assert [chunk.split(b"\r\n", 1)[1] for chunk in told.wire.written[1:3]] == [PING + b"\r\n"] * 2
        told.desk.token("d0", 1)
        told.desk.token("d0", 2)
        assert (await rest).endswith(DONE)

    tell(story)
