"""What groups send: messages are delivered, and bytes that are none cost nothing but a line in the log."""

import asyncio
import threading

import msgspec
import pytest
import zmq
import zmq.asyncio

from router.upstream import MESSAGE_BYTES, Upstream
from tandem.core.ids import RequestId, Room
from tandem.core.messages import Token
from tandem.runtime.links import Sockets

TOKEN = Token(Room(RequestId(1), 1), 0, 65)
GARBAGE = {
    "no msgpack": [b"\xc1"],
    "no message": [msgspec.msgpack.encode(["Nobody", 1])],
    "nested where a later version may have a field": [b"\x95" + msgspec.msgpack.encode(TOKEN)[1:] + b"\x91" * 60_000],
    "too large": [b"\0" * (MESSAGE_BYTES + 1)],
    "two frames": [b"", b""],
}


@pytest.mark.parametrize("frames", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_skipped_and_what_follows_is_delivered(frames, caplog):
    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as group:
            group.bind("inproc://p0")

            def connect(address: str) -> zmq.asyncio.Socket:
                dealer = context.socket(zmq.DEALER)
                dealer.connect(address)
                return dealer

            upstream = Upstream(
                connect, lambda name, message: arrived.put_nowait((name, message)), print, arrived.put_nowait
            )
            upstream.connect("p0", "inproc://p0")
            identity, _ = await group.recv_multipart()
            for sent in (frames, [msgspec.msgpack.encode(TOKEN)]):
                await group.send_multipart([identity, *sent])
            async with asyncio.timeout(30):
                first = await arrived.get()
            upstream.close()
            return first

    assert asyncio.run(story()) == ("p0", TOKEN)
    assert "group p0 sent" in caplog.text


def test_a_group_that_hangs_up_is_heard_to_its_last_word(tmp_path):
    """It closes its socket behind its farewell: both are there before the loop looks again."""

    async def story() -> list[object]:
        arrived: asyncio.Queue[object] = asyncio.Queue()
        with zmq.asyncio.Context() as context:
            sockets = Sockets(context, b"")
            upstream = Upstream(
                lambda address: sockets.connect(zmq.DEALER, address, last_words=True),
                lambda name, message: arrived.put_nowait(message),
                lambda name: arrived.put_nowait(f"{name} hung up"),
                arrived.put_nowait,
            )
            upstream.connect("p0", f"ipc://{tmp_path}/p0")
            farewells = threading.Thread(target=say_goodbye, args=(f"ipc://{tmp_path}/p0", 3))
            farewells.start()
            farewells.join()  # the loop stands still meanwhile
            async with asyncio.timeout(30):
                heard = [await arrived.get() for _ in range(4)]
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
            group.send_multipart([identity, msgspec.msgpack.encode(TOKEN)])
