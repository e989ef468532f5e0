"""A real router over real HTTP, in front of a protocol double: rank 0 of prefill and decode groups in a thread."""

import contextlib
import json
import queue
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import openai
import pytest
import zmq
from byte_text import ByteDetokenizer
from waiting import DEADLINE_S, eventually

from router.app import Parts, Router
from router.asked import CHOICES_MAX
from router.auth import Doors
from router.connection import Connection
from router.ports import Model
from router.service import Rules
from router.upstream import Connect
from tandem.core.config import Frontend, Group, Limits, RoleName, RouterOptions
from tandem.core.ids import Epoch, RankId, Room
from tandem.core.inputs import Control, Knobs, Submit
from tandem.core.members import Member
from tandem.core.messages import Cancel, Done, Evicted, Load, ToGroup, Token, Watch
from tandem.core.requests import NO_LOGPROBS, Logprobs, Reason, Work, ending

EOS = 256
PREFILL, DECODE = "p0", "d0"


class ByteTokenizer:
    eos_ids = (EOS,)

    def encode_text(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        if any(message["content"] == "refuse me" for message in messages):
            raise ValueError("roles must alternate")
        return list("".join(f"{message['role']}: {message['content']}\n" for message in messages).encode())

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < EOS else b""

    def special_name(self, token: int) -> str:
        return "<end>" if token == EOS else ""


def check_grammar(text: str) -> None:
    if "impossible" in text:
        raise ValueError("it allows nothing")


def logprobs_of(work: Work, token: int) -> Logprobs | None:
    """The token itself is the likeliest, then come those with the next ids."""
    count = work.sampling.logprobs
    likeliest = tuple((token + at, -0.5 - at) for at in range(count))
    return None if count == NO_LOGPROBS else Logprobs(-0.5, likeliest)


@dataclass
class Script:
    """What the double does with the next requests."""

    reply: bytes = b"hello world"
    ids: list[int] | None = None  # instead of the reply's bytes
    hold_at: int | None = None  # send this many tokens, then wait for `go`
    refuse: dict[str, Reason] = field(default_factory=dict)  # group -> its only answer
    fail_after: dict[str, tuple[int, Reason]] = field(default_factory=dict)  # decode: tokens, then this Done
    fail_at: dict[int, tuple[int, Reason]] = field(default_factory=dict)  # the same for one choice, by its number
    evict_after: int | None = None  # decode: so many tokens of every attempt, then Evicted
    cached: int = 0  # tokens of the prompt that prefill says it had
    noise: bool = False  # duplicates, and tokens of another attempt

    def let_go(self) -> None:
        self.hold_at = None


class PairDouble(threading.Thread):
    """Protocol double: speaks what rank 0 of prefill and of decode groups speak, and computes nothing."""

    def __init__(self, limits: Limits, pairs: int = 1) -> None:
        super().__init__(daemon=True)
        self.limits = limits
        self.script = Script()
        self.silent: set[str] = set()
        self.epoch = 1
        self.names = [f"{role}{pair}" for pair in range(pairs) for role in "pd"]
        self.seen: list[tuple[str, Submit | Cancel | Control | Knobs]] = []
        self._news = threading.Condition()
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: dict[str, Any] = {}
        self.addresses: dict[str, str] = {}
        self._routers: dict[str, set[bytes]] = {}
        for name in self.names:
            self._bind(name)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._works: dict[Room, dict[str, tuple[bytes, Work]]] = {}
        self._sent: dict[Room, int] = {}
        self._gone: set[Room] = set()
        self._prompts: dict[int, int] = {}  # tokens in the prompt of the first attempt, by request
        self._over = threading.Event()
        self._decode = msgspec.msgpack.Decoder(ToGroup).decode

    def members(self) -> list[Member]:
        common = {
            "rank": RankId(0), "boot_ms": 1, "host": "h", "fingerprint": "f", "model": "tiny",
            "ring": "", "hidden": "", "http": "", "limits": self.limits, "epoch": Epoch(self.epoch),
        }  # fmt: skip
        roles = {"p": RoleName.PREFILL, "d": RoleName.DECODE}
        groups = [Group(roles[name[0]], name, (1,)) for name in self.names]
        return [
            Member(group, incarnation=number, intake=self.addresses[group.name], **common)
            for number, group in enumerate(groups)
        ]

    def play(self, **script: Any) -> None:
        """Forget everything, and do this from now on."""
        with self._news:
            self.seen.clear()
        self.script = Script(**script)

    def go(self) -> None:
        """Send what was held, of all requests in the order they came."""
        script = self.script
        self._calls.put(lambda: script.let_go())

    def end(self, name: str, farewell: Reason | None = None) -> None:
        """This group hangs up, after a last word about each of its requests, if one is given."""
        self._calls.put(lambda: self._end_group(name, farewell))

    def start_over(self) -> None:
        """Those that have ended are there again, and all have another epoch."""
        self._calls.put(self._start_over)

    def wait_for(self, kind: type, group: str | None = None, count: int = 1) -> list[Any]:
        """Messages of this kind that groups got, once there are `count`."""

        def found() -> list[Any]:
            return [m for g, m in self.seen if isinstance(m, kind) and group in (None, g)]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, DEADLINE_S), f"{kind.__name__}: {self.seen}"
            return found()

    def close(self) -> None:
        self._over.set()
        self.join()
        for intake in self._sockets.values():
            intake.close(0)
        self._context.term()

    def _bind(self, name: str) -> None:
        intake = self._sockets[name] = self._context.socket(zmq.ROUTER)
        intake.linger = 0
        intake.sndhwm = 0  # a burst is not to be lost here
        intake.bind("tcp://127.0.0.1:*")
        self.addresses[name] = intake.last_endpoint.rstrip(b"\0").decode()
        self._routers[name] = set()
        self._poller.register(intake, zmq.POLLIN)

    def _end_group(self, name: str, farewell: Reason | None) -> None:
        for room, sides in list(self._works.items()):
            if name in sides:
                if farewell is not None:
                    self._send(name, sides[name][0], Done(room, farewell))
                self._end(room)
        self._routers[name].clear()
        intake = self._sockets.pop(name)
        self._poller.unregister(intake)
        intake.close(1000)

    def _start_over(self) -> None:
        for name in self.names:
            if name not in self._sockets:
                self._bind(name)
        self.epoch += 1

    def run(self) -> None:
        load_at = 0.0
        while not self._over.is_set():
            while not self._calls.empty():
                self._calls.get()()
            for intake, _ in self._poller.poll(5):
                name = next(name for name, other in self._sockets.items() if other is intake)
                while intake.poll(0):
                    self._on(name, *intake.recv_multipart())
            for room in list(self._works):
                self._advance(room)
            if time.monotonic() >= load_at:
                load_at = time.monotonic() + 0.2
                self._send_loads()

    def _on(self, name: str, router: bytes, payload: bytes) -> None:
        message = self._decode(payload)
        if router not in self._routers[name]:
            self._routers[name].add(router)
            self._send_loads()
        if isinstance(message, Watch):
            return
        if isinstance(message, Submit):
            self._works.setdefault(message.work.room, {})[name] = (router, message.work)
        elif isinstance(message, Cancel) and message.room in self._works:
            self._end(message.room)
        with self._news:
            self.seen.append((name, message))
            self._news.notify_all()

    def _send_loads(self) -> None:
        for name, routers in self._routers.items():
            for router in routers if name not in self.silent else ():
                self._send(name, router, Load(name, 0, 0, 99))

    def _send(self, name: str, router: bytes, message: Any) -> None:
        self._sockets[name].send_multipart([router, msgspec.msgpack.encode([message])])

    def _advance(self, room: Room) -> None:
        """One step of a request: refusals, then token 0 from prefill, then everything from decode."""
        sides = self._works[room]
        work = next(iter(sides.values()))[1]
        if len(sides) < (1 if work.peer is None else 2) or room in self._gone:
            return
        script = self.script
        refusals = {name: reason for name, reason in script.refuse.items() if name in sides}
        for name, reason in refusals.items():
            self._send(name, sides[name][0], Done(room, reason))
        if refusals:
            self._end(room)
            return
        ids = script.ids if script.ids is not None else [*script.reply, EOS]
        if script.ids is None and not work.stop_ids:
            ids = ids * (work.last_position // len(ids) + 1)  # the end of the sequence is ignored: again and again
        ids = ids[len(work.prompt) - self._prompts.setdefault(room.rid, len(work.prompt)) :]
        while (sent := self._sent.get(room, 0)) < len(ids):
            if script.hold_at == sent:
                return
            if not self._send_token(room, sides, work, sent, ids[sent]):
                return

    def _send_token(self, room: Room, sides: dict[str, tuple[bytes, Work]], work: Work, index: int, token: int) -> bool:
        """False when the request has ended with it."""
        reason, logprobs = ending(work, index + 1, token), logprobs_of(work, token)
        prefill = next(name for name in sides if name[0] == "p")
        decode = next((name for name in sides if name[0] == "d"), None)
        if index == 0:
            self._send(prefill, sides[prefill][0], Token(room, 0, token, logprobs, self.script.cached))
            if reason is not None:
                self._send(prefill, sides[prefill][0], Done(room, reason))
        if decode is not None and (index or reason is None):
            router = sides[decode][0]
            fails_at, failure = self.script.fail_after.get(decode, (None, None))
            fails_at, failure = self.script.fail_at.get(room.rid % CHOICES_MAX, (fails_at, failure))
            if fails_at == index:
                self._send(decode, router, Done(room, failure))
                self._end(room)
                return False
            if self.script.evict_after == index:
                self._send(decode, router, Evicted(room))
                self._end(room)
                return False
            if self.script.noise and index:
                self._send(decode, router, Token(Room(room.rid, 2), index, ord("X")))
                self._send(decode, router, Token(room, index - 1, ord("Y")))
            self._send(decode, router, Token(room, index, token, logprobs))
            if reason is not None:
                self._send(decode, router, Done(room, reason))
        self._sent[room] = index + 1
        if reason is not None:
            self._end(room)
        return reason is None

    def _end(self, room: Room) -> None:
        self._gone.add(room)
        self._works.pop(room, None)


class Serving:
    """A running router and the double behind it."""

    def __init__(
        self,
        double: PairDouble,
        rules: Rules,
        members: Callable[[], list[Member]],
        doors: Doors | None = None,
        frontend: Frontend | None = None,
    ) -> None:
        self.double = double
        self.members = members
        self._ready = threading.Event()
        self._urls: tuple[str, str] = ("", "")
        options = RouterOptions(
            cluster="", model="tiny", served_model_name="", registry_url="", port=0, frontend=frontend or Frontend()
        )
        parts = Parts(
            Model("tiny", 257, ByteTokenizer(), check_grammar),
            lambda: self.members(),
            self._connector,
            doors or Doors(),
        )
        self.router = Router(options, parts, rules)
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        self.url, self.admin_url = self._urls

    @staticmethod
    def _connector(context: "zmq.Context[zmq.Socket[bytes]]") -> Connect:
        def connect(address: str) -> "zmq.Socket[bytes]":
            dealer = context.socket(zmq.DEALER)
            dealer.rcvhwm = 0
            dealer.connect(address)
            return dealer

        return connect

    def _run(self) -> None:
        self.exit_code = self.router.serve(self._on_ready)

    def _on_ready(self, url: str, admin_url: str) -> None:
        self._urls = (url, admin_url)
        self._ready.set()

    @property
    def address(self) -> tuple[str, int]:
        url = urllib.parse.urlsplit(self.url)
        assert url.hostname is not None
        assert url.port is not None
        return url.hostname, url.port

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def get(self, path: str, admin: bool = False) -> tuple[int, Any]:
        """Status and JSON body."""
        try:
            with urllib.request.urlopen((self.admin_url if admin else self.url) + path, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def order(self, path: str, body: Any = None) -> tuple[int, Any]:
        """POST to the admin port: status and JSON body."""
        payload = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"{self.admin_url}/workers/{path}"
        request = urllib.request.Request(url, payload, {"content-type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def wait_ready(self) -> None:
        eventually(lambda: self.get("/readyz")[0] == 200)

    def usable(self) -> list[str]:
        """Names of the groups that can take requests."""
        workers = self.get("/workers", admin=True)[1]["workers"]
        return [worker["name"] for worker in workers if worker["usable"]]

    def wait_usable(self, count: int) -> None:
        eventually(lambda: len(self.usable()) == count)

    def wait_at_rest(self) -> None:
        eventually(lambda: self.get("/requests", admin=True)[1] == {"open": 0, "admitted": 0, "coming": 0})

    def wait_coming(self, count: int) -> None:
        """So many bodies are being read."""
        eventually(lambda: self.get("/requests", admin=True)[1]["coming"] == count)

    def raw(self, head: str, body: bytes = b"") -> bytes:
        """Send bytes as they are; everything the server says until it closes."""
        with socket.create_connection(self.address, timeout=DEADLINE_S) as line:
            line.sendall(head.replace("\n", "\r\n").encode() + body)
            return read_all(line)

    def post(self, path: str, body: bytes | dict[str, Any], **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body, over a connection of its own."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"host": "x", "connection": "close", "content-type": "application/json",
                "content-length": str(len(payload)), **headers}  # fmt: skip
        lines = "".join(f"{name}: {value}\n" for name, value in head.items())
        return parse(self.raw(f"POST {path} HTTP/1.1\n{lines}\n", payload))

    def open_stream(self, **fields: Any) -> socket.socket:
        """A chat stream on a raw socket, its response unread."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
        return self.open_post("/v1/chat/completions", body)

    def open_post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A request on a raw socket, its response unread."""
        payload = json.dumps(body).encode()
        line = socket.create_connection(self.address, timeout=DEADLINE_S)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        line.sendall(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        return line

    def close(self) -> None:
        self.router.end()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def read_all(line: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while chunk := line.recv(65536):
            data += chunk
    return bytes(data)


def read_until(line: socket.socket, enough: Callable[[bytes], Any], data: bytes = b"") -> bytes:
    """`data`, and what comes until both are enough; to hang up before is wrong."""
    while not enough(data):
        data += (more := line.recv(65536))
        assert more, f"it hung up after {data!r}"
    return data


def read_head(line: socket.socket) -> bytes:
    """The whole head of an answer, with whatever came with its end."""
    return read_until(line, lambda data: b"\r\n\r\n" in data)


def read_one(line: socket.socket) -> bytes:
    """One answer that tells its length; the connection stays open."""
    head = read_head(line)
    whole = head.find(b"\r\n\r\n") + 4 + int(parse(head)[1]["content-length"])
    return read_until(line, lambda data: len(data) >= whole, head)


def calls_of(monkeypatch: pytest.MonkeyPatch, line: socket.socket, method: str) -> list[int | None]:
    """Grows with each call of this method of the server's end of a line, from now on: what was left to be written."""
    calls: list[int | None] = []
    client, original = line.getsockname(), getattr(Connection, method)

    def called(own: Connection, *given: Any) -> None:
        original(own, *given)
        if own.client == client:
            calls.append(own._left_bytes)

    monkeypatch.setattr(Connection, method, called)
    return calls


def parse(response: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


@pytest.fixture
def start() -> Iterator[Callable[..., Serving]]:
    """Start a router with rules of its own: `start(ping_s=0.1)`."""
    with contextlib.ExitStack() as stack:

        def starter(
            limits: Limits | None = None,
            registered: bool = True,
            pairs: int = 1,
            doors: Doors | None = None,
            frontend: Frontend | None = None,
            **rules: Any,
        ) -> Serving:
            double = PairDouble(limits or Limits(), pairs)
            stack.callback(double.close)
            double.start()
            members = double.members if registered else list
            serving = Serving(double, replace(Rules(), **rules), members, doors, frontend)
            stack.callback(serving.close)
            if registered:
                serving.wait_usable(2 * pairs)
            return serving

        yield starter


@pytest.fixture(scope="module")
def shared() -> Iterator[Serving]:
    double = PairDouble(Limits())
    double.start()
    serving = Serving(double, Rules(), double.members)
    serving.wait_ready()
    yield serving
    serving.close()
    double.close()


@pytest.fixture
def serving(shared: Serving) -> Iterator[Serving]:
    """The module's router, at rest before and after the test."""
    shared.double.play()
    yield shared
    shared.double.go()
    shared.wait_at_rest()


@pytest.fixture
def until() -> Callable[..., Any]:
    """`until(condition)`: its first true value."""
    return eventually


@pytest.fixture
def kinds() -> Any:
    """The protocol's nouns, for tests that look at what the groups got."""

    class Kinds:
        control, knobs = Control, Knobs
        submit, cancel, prefill, decode, eos = Submit, Cancel, PREFILL, DECODE, EOS
        parse, read_all, read_one = parse, read_all, read_one
        read_until, read_head, calls_of = read_until, read_head, calls_of

    return Kinds
