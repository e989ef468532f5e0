"""What is left of a request that is over: nothing that has to be collected, as all streams stand still for that."""

import asyncio
import gc
import json

import pytest
import uvicorn
from byte_text import ByteDetokenizer
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from router.auth import Doors
from router.connection import Connection
from router.exchange import Exchange
from router.ports import Model
from router.routes import build_app
from router.service import Rules, Service
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Load, ToGroup, Token


class Tokens:
    eos_ids = ()

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


class Links:
    """The sockets' double."""

    def __init__(self, connect, deliver, *_) -> None:
        self.deliver = deliver
        self.submits: list[Submit] = []

    def connect(self, group: str, address: str) -> None: ...

    def watch(self) -> None: ...

    def close(self) -> None: ...

    def send(self, group: str, message: ToGroup) -> bool:
        if isinstance(message, Submit):
            self.submits.append(message)
        return True


class Wire(asyncio.Transport):
    """A client's connection, and the socket under it."""

    def __init__(self) -> None:
        super().__init__({"socket": self, "peername": None, "sockname": None})
        self.said = b""

    def write(self, data: bytes) -> None:
        self.said += data

    def is_closing(self) -> bool:
        return False

    def setsockopt(self, *_) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "here", 1

    getpeername = getsockname

    def set_write_buffer_limits(self, high: int) -> None: ...

    def resume_reading(self) -> None: ...


def head(role: RoleName, name: str) -> Member:
    place, about = Group(role, name, (1,)), {"epoch": Epoch(1), "intake": "ipc:///i"}
    return Member(place, RankId(0), 1, 0, "h", "f", "m", "", "", "", Limits(), **about)


def kept() -> int:
    return sum(type(each) in (Exchange, RequestResponseCycle) for each in gc.get_objects())


async def rounds() -> None:
    """All that is on the loop has its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


async def asks(links: Links, client: Connection, wire: Wire, stream: bool) -> None:
    wire.said = b""
    content = json.dumps({"model": "m", "prompt": [1], "max_tokens": 2, "stream": stream}).encode()
    client.data_received(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
    await rounds()
    room = links.submits[-1].work.room
    links.deliver("p0", Token(room, 0, 65))
    await rounds()
    for index in range(2):
        links.deliver("d0", Token(room, index, 65 + index))
    await rounds()
    assert (b"[DONE]" if stream else b'"AB"') in wire.said


@pytest.mark.parametrize("stream", [False, True])
def test_an_answered_request_leaves_nothing_to_collect(monkeypatch, stream):
    async def story() -> int:
        service = Service(Rules(), Model("m", 257, Tokens()), None, pytest.fail, Doors())
        app = build_app(service)
        await service.start()
        service.on_members([head(RoleName.PREFILL, "p0"), head(RoleName.DECODE, "d0")])
        for name in ("p0", "d0"):
            service.upstream.deliver(name, Load(name, 0, 0, 100))
        config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None)
        config.load()
        client, wire = Connection(config, ServerState(), {}), Wire()
        client.connection_made(wire)
        await asks(service.upstream, client, wire, stream)
        gc.collect()
        before = kept()
        for _ in range(3):
            await asks(service.upstream, client, wire, stream)
        after = kept()
        await service.stop()
        return after - before

    monkeypatch.setattr("router.service.Upstream", Links)
    gc.disable()
    try:
        assert asyncio.run(story()) == 0
    finally:
        gc.enable()
