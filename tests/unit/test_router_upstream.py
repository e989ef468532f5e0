"""What groups send: messages are delivered, and bytes that are none cost nothing but a line in the log."""

import asyncio
import select
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq
from waiting import eventually

from router.upstream import BATCH, MESSAGE_BYTES, Upstream
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Done, Token, Watch
from tandem.core.requests import Reason
from tandem.runtime.links import Sockets

ROOM = Room(RequestId(1), 1)
TOKEN = Token(ROOM, 0, 65)
GARBAGE = {
    "no msgpack": [b"\xc1"],
    "no message": [msgspec.msgpack.encode([["Nobody", 1]])],
    "nested where a later version may have a field": [
        b"\x91\x95" + msgspec.msgpack.encode(TOKEN)[1:] + b"\x91" * 60_000
    ],
    "too large": [b"\0" * (MESSAGE_BYTES + 1)],
    "two frames": [b"", b""],
}


class Group:
    """A rank 0 that says what it is told to, and the router's end of its line, on one loop."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.rcvtimeo = 30_000
        self._socket.bind("inproc://p0")

    def upstream(
        self, arrived: "asyncio.Queue[object]", cached: Callable[[str], int | None] = lambda _: None
    ) -> Upstream:
        """Connected; what it hears arrives."""

        def connect(address: str) -> "zmq.Socket[bytes]":
            self._line = self._context.socket(zmq.DEALER)
            self._line.connect(address)
            return self._line

        upstream = Upstream(
            connect, lambda name, message: arrived.put_nowait(message), print, arrived.put_nowait, cached
        )
        upstream.connect("p0", "inproc://p0")
        return upstream

    def hears(self) -> bytes:
        """The next message of the router."""
        self._identity, said = self._socket.recv_multipart()
        return said

    def says(self, *frames: bytes) -> None:
        """To whoever was heard last."""
        self._socket.send_multipart([self._identity, *frames])

    @property
    def shows_a_sign(self) -> bool:
        """The router's loop would look at its end of the line."""
        return bool(select.select([self._line], [], [], 0)[0])

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


async def next_of(arrived: "asyncio.Queue[object]") -> object:
    async with asyncio.timeout(30):
        return await arrived.get()


@pytest.mark.parametrize("frames", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_skipped_and_what_follows_is_delivered(group, frames, caplog):
    async def story() -> object:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        upstream = group.upstream(arrived)
        group.hears()
        group.says(*frames)
        group.says(msgspec.msgpack.encode([TOKEN]))
        first = await next_of(arrived)
        upstream.close()
        return first

    assert asyncio.run(story()) == TOKEN
    assert "group p0 sent" in caplog.text


def test_each_watch_says_how_far_the_cache_of_its_group_is_known(group):
    async def story() -> list[Watch]:
        known = {}
        upstream = group.upstream(asyncio.Queue(), known.get)
        known["p0"] = 17
        upstream.watch()
        said = [msgspec.msgpack.decode(group.hears(), type=Watch) for _ in range(2)]
        upstream.close()
        return said

    assert asyncio.run(story()) == [Watch(None), Watch(17)]


def test_a_burst_that_comes_while_the_router_speaks_is_heard_to_its_end(group):
    """What is said may use up the sign that something has come, and nothing gives it again."""
    burst = [Token(ROOM, index, 65) for index in range(3 * BATCH)]

    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        upstream = group.upstream(arrived)
        group.hears()
        for _ in range(3):  # rounds of the loop: all was looked at, and nothing was there
            await asyncio.sleep(0)
        for token in burst:
            group.says(msgspec.msgpack.encode([token]))
        eventually(lambda: upstream.send("p0", Watch()) and not group.shows_a_sign)
        heard = [await next_of(arrived) for _ in burst]
        upstream.close()
        return heard

    assert asyncio.run(story()) == burst


def test_all_of_a_frame_is_delivered_in_its_order(group):
    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        upstream = group.upstream(arrived)
        group.hears()
        group.says(msgspec.msgpack.encode([TOKEN, Done(ROOM, Reason.LENGTH)]))
        heard = [await next_of(arrived) for _ in range(2)]
        upstream.close()
        return heard

    assert asyncio.run(story()) == [TOKEN, Done(ROOM, Reason.LENGTH)]


def test_a_group_that_is_dropped_by_what_it_says_is_heard_no_more(group):
    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        upstream = group.upstream(arrived)
        upstream._deliver = lambda name, message: (arrived.put_nowait(message), upstream.drop(name))
        group.hears()
        for _ in range(2):
            group.says(msgspec.msgpack.encode([TOKEN]))
        await next_of(arrived)
        assert not upstream.send("p0", Watch())
        return [arrived.get_nowait() for _ in range(arrived.qsize())]

    assert asyncio.run(story()) == []


def test_a_bug_on_the_way_of_the_tokens_is_told(group):
    async def story() -> object:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        upstream = group.upstream(arrived)
        upstream._deliver = lambda name, message: 1 / 0
        group.hears()
        group.says(msgspec.msgpack.encode([TOKEN]))
        told = await next_of(arrived)
        upstream.close()
        return told

    assert isinstance(asyncio.run(story()), ZeroDivisionError)


def test_a_group_that_hangs_up_is_heard_to_its_last_word(tmp_path):
    """It closes its socket behind its farewell: both are there before the loop looks again."""

    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        with zmq.Context() as context:
            sockets: Sockets[zmq.Socket[bytes]] = Sockets(context, b"")
            upstream = Upstream(
                lambda address: sockets.connect(zmq.DEALER, address, last_words=True),
                lambda name, message: arrived.put_nowait(message),
                lambda name: arrived.put_nowait(f"{name} hung up"),
                arrived.put_nowait,
                lambda _: None,
            )
            upstream.connect("p0", f"ipc://{tmp_path}/p0")
            farewells = threading.Thread(target=say_goodbye, args=(f"ipc://{tmp_path}/p0", 3))
            farewells.start()
            farewells.join()  # the loop stands still meanwhile
            heard = [await next_of(arrived) for _ in range(4)]
            upstream.close()
            sockets.close()
            return heard

    assert asyncio.run(story()) == [TOKEN, TOKEN, TOKEN, "p0 hung up"]


def say_goodbye(address: str, words: int) -> None:
    """A group that answers the first Watch with its last words."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as group:
        group.linger = 1000
        group.bind(address)
        identity, _ = group.recv_multipart()
        for _ in range(words):
            group.send_multipart([identity, msgspec.msgpack.encode([TOKEN])])
