"""Mock HTTP workers in a process of their own, for routers of others: they answer as SGLang's and vLLM's servers do.

A prefill worker answers at once; a decode worker says a token for each beat of its clock, as the mock groups do, and
by the same rule: the request's seed says how long a beat is, in milliseconds.
"""

import asyncio
import functools
import json
import sys
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

from bench.beside import ordered, tell
from bench.router.groups import SLOTS

HEAD_END = b"\r\n\r\n"
FACTS = {
    "model_path": "mock",
    "served_model_name": "mock",
    "tokenizer_path": "",
    "is_generation": True,
    "model_type": "llama",
    "max_model_len": 8192,
    "tp_size": 1,
    "dp_size": 1,
    "version": "mock",
}
MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "created": 0, "owned_by": "mock"}]}
ASKED: dict[str, object] = {
    "/health": {},
    "/health_generate": {},
    "/v1/models": MODELS,
    **dict.fromkeys(("/server_info", "/get_server_info", "/model_info", "/get_model_info"), FACTS),
}
"""What routers ask of workers before and between requests; for anything else there is a 404."""
TRANSFER = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": "mock", "remote_block_ids": [0]}
"""What vLLM's prefill servers tell the decode servers, by way of the router."""


class Order(msgspec.Struct, frozen=True):
    """How many of each role, and the text of the tokens to say again and again."""

    prefill: int
    decode: int
    reply: tuple[str, ...]


class Where(msgspec.Struct, frozen=True):
    """Ports by role."""

    prefill: list[int]
    decode: list[int]


class Wanted(msgspec.Struct):
    """What a mock needs to know of a request."""

    max_tokens: int = 16
    stream: bool = False
    seed: int = 0


class Beats:
    """One clock for each pace and slot: all that is due at a beat comes at the same moment."""

    def __init__(self) -> None:
        self._count = 0
        self._due: dict[tuple[int, int], list[Callable[[], bool]]] = {}

    def join(self, every_ms: int, step: Callable[[], bool]) -> None:
        """Call `step` at each beat until it says False."""
        self._count += 1
        key = (every_ms, self._count % SLOTS)
        if key not in self._due:
            every_s = every_ms / 1000
            now_s = asyncio.get_running_loop().time()
            phase_s = every_s * key[1] / SLOTS
            self._due[key] = []
            self._later(now_s + every_s - (now_s - phase_s) % every_s, key)
        self._due[key].append(step)

    def _later(self, at_s: float, key: tuple[int, int]) -> None:
        asyncio.get_running_loop().call_at(at_s, self._beat, at_s, key)

    def _beat(self, at_s: float, key: tuple[int, int]) -> None:
        self._due[key] = [step for step in self._due[key] if step()]
        if self._due[key]:
            self._later(at_s + key[0] / 1000, key)
        else:
            del self._due[key]


class Worker(asyncio.Protocol):
    """One connection of a router: requests one after the other."""

    def __init__(self, *, decodes: bool, beats: Beats, reply: tuple[str, ...]) -> None:
        self._decodes = decodes
        self._beats = beats
        self._reply = reply
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own, which are no subclasses

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while HEAD_END in self._unread and not self._transport.is_closing():
            head, _, rest = self._unread.partition(HEAD_END)
            length = body_length(head)
            if len(rest) < length:
                return
            self._unread = rest[length:]
            line = head.partition(b"\r\n")[0].decode(errors="replace").split()
            self._answer(line[0], line[1].partition("?")[0], rest[:length])

    def _answer(self, method: str, path: str, body: bytes) -> None:
        if method == "PRI":  # HTTP/2, which these do not speak
            self._transport.close()
        elif path in ASKED:
            self._whole(ASKED[path])
        elif method == "POST" and path == "/v1/completions":
            wanted = msgspec.json.decode(body, type=Wanted)
            (self._stream if wanted.stream else self._complete)(wanted)
        else:
            self._whole({"error": {"message": f"{path} does not exist here"}}, "404 Not Found")

    def _whole(self, what: object, status: str = "200 OK") -> None:
        body = json.dumps(what).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)

    def _complete(self, wanted: Wanted) -> None:
        tokens = wanted.max_tokens if self._decodes else 1
        answer = chunk(self._text(0, tokens), "length")
        answer["usage"] = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
        if not self._decodes:
            answer["kv_transfer_params"] = TRANSFER
        if not self._decodes or not wanted.seed:
            self._whole(answer)
            return
        left = tokens

        def step() -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                self._whole(answer)
            return left > 0 and not self._transport.is_closing()

        self._beats.join(wanted.seed, step)

    def _stream(self, wanted: Wanted) -> None:
        tokens = wanted.max_tokens if self._decodes else 1
        self._write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0

        def step() -> bool:
            nonlocal sent
            sent += 1
            self._event(chunk(self._text(sent - 1, 1), None))
            if sent == tokens:
                self._write(piece(event(chunk("", "length"))) + piece(b"data: [DONE]\n\n") + piece(b""))
            return sent < tokens and not self._transport.is_closing()

        if self._decodes and wanted.seed:
            self._beats.join(wanted.seed, step)
        else:
            while step():
                pass

    def _event(self, what: dict[str, object]) -> None:
        self._write(piece(event(what)))

    def _text(self, first: int, count: int) -> str:
        return "".join(self._reply[index % len(self._reply)] for index in range(first, first + count))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def body_length(head: bytes) -> int:
    """Bytes of the body that follows."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def chunk(text: str, finish_reason: str | None) -> dict[str, object]:
    """One event of a stream, or the body of an answer."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "mock", "choices": [choice]}


def event(what: dict[str, object]) -> bytes:
    """As server-sent events are written."""
    return b"data: " + msgspec.json.encode(what) + b"\n\n"


def piece(data: bytes) -> bytes:
    """A chunk of HTTP's chunked coding; an empty one ends the answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(order: Order) -> None:
    """Until standard input closes."""
    loop = asyncio.get_running_loop()
    ports: dict[bool, list[int]] = {False: [], True: []}
    for decodes, count in ((False, order.prefill), (True, order.decode)):
        for _ in range(count):
            worker = functools.partial(Worker, decodes=decodes, beats=Beats(), reply=order.reply)
            server = await loop.create_server(worker, "127.0.0.1", 0)
            ports[decodes].append(server.sockets[0].getsockname()[1])
    tell(Where(ports[False], ports[True]))
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)
    await closed.wait()


if __name__ == "__main__":
    uvloop.run(serve(ordered(Order)))
