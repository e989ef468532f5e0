"""ZMQ sockets with their limits and keys set, and the one place where bytes from a peer become messages."""

import hashlib
import hmac
import os
import re
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.utils.z85

from tandem.core.errors import ConfigError

HIGH_WATER = 4096
"""Messages queued per peer and direction."""
MAX_MESSAGE_BYTES = 64 << 20
"""A longer message ends the connection before it is read: hidden states of 1,024 tokens of 16,384 floats fit."""
MIN_SECRET_BYTES = 16
MAX_IPC_PATH_BYTES = 107
"""What sockaddr_un holds, without its terminating zero."""
RECONNECT_MS, RECONNECT_MAX_MS = 100, 1000
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 10, 5, 3

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"tandem"
EVERYWHERE = ("0.0.0.0", "::", "*", "")

S = TypeVar("S", bound="zmq.Socket[Any]")
T = TypeVar("T")


class Sockets(Generic[S]):
    """Opens every socket of a process: ipc inside a private directory, or tcp that only holders of the secret can use.

    All processes of a cluster share one CURVE key pair, derived from the cluster secret: a server proves itself to
    its clients with it, and a ZAP handler admits that one client key only. ZAP belongs to the context, so at most one
    Sockets per context may bind tcp. Sockets may be opened by several threads; each is used by one.
    """

    def __init__(self, context: "zmq.Context[S]", secret: bytes) -> None:
        self._context = context
        self._keys = curve_keys(secret) if secret else None
        self._doorman: _Doorman | None = None
        self._lock = threading.Lock()
        self._open: list[S] = []

    def bind(self, kind: int, where: str, name: str, *, port: int = 0, high_water: int = HIGH_WATER) -> tuple[S, str]:
        """Open a socket at `ipc://where/name` if `where` is an absolute path, else at a tcp port of host `where`.

        Port 0 is any free one. Returns it with the address for peers. Raises ConfigError when `where` cannot be used.
        """
        address = ipc_address(where, name) if where.startswith("/") else tcp_address(where, port)
        socket = self._socket(kind, address, high_water, server=True)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError(f"cannot bind {address}: {error}; give an address of this machine") from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return socket, bound.rstrip(b"\0").decode()

    def connect(
        self,
        kind: int,
        address: str,
        identity: bytes | None = None,
        *,
        high_water: int = HIGH_WATER,
        last_words: bool = False,
    ) -> S:
        """Open a socket to an address that `bind` returned, here or elsewhere. Raises ConfigError for any other.

        `last_words`, of a DEALER: what has come is not dropped when the other end has gone; in return, what is said to
        nobody waits for a successor at the same address.
        """
        socket = self._socket(kind, address, high_water, server=False)
        if last_words:
            socket.setsockopt(zmq.IMMEDIATE, 0)
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError(f"cannot connect to {address}: {error}") from None
        return socket

    def close(self) -> None:
        """Close every socket that is still open, dropping what they have not sent. The context stays."""
        with self._lock:
            for socket in self._open:
                socket.close(0)
            self._open.clear()
            if self._doorman is not None:
                self._doorman.stop()
                self._doorman = None

    def _socket(self, kind: int, address: str, high_water: int, *, server: bool) -> S:
        with self._lock:
            tcp = address.startswith("tcp://")
            if tcp and self._keys is None:
                raise ConfigError(f"{address} needs the cluster secret: give --cluster-secret-file")
            if tcp and server and self._doorman is None:
                assert self._keys is not None
                self._doorman = _Doorman(self._context, self._keys[0])
            socket = self._context.socket(kind)
            _limit(socket, kind, high_water)
            if tcp and self._keys is not None:
                _secure(socket, self._keys, server=server)
            self._open = [other for other in self._open if not other.closed] + [socket]
            return socket


def read_secret(path: str) -> bytes:
    """The cluster secret; without a file empty: only unix sockets will do. Raises ConfigError for an unsafe one."""
    if not path:
        return b""
    try:
        found, secret = os.stat(path), Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cluster-secret-file is {path!r}: {error.strerror}") from None
    if stat.S_IMODE(found.st_mode) & _not_for(found):
        raise ConfigError(f"cluster-secret-file {path} can be read by others: chmod 600 it")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"cluster-secret-file {path} holds {len(secret)} bytes: at least {MIN_SECRET_BYTES} are needed"
        )
    return secret


def _not_for(found: os.stat_result) -> int:
    """The bits of a secret's mode that give it to others. Kubernetes hands root's file over by a group of the pod."""
    lent_by_root = found.st_uid == 0 and os.geteuid() != 0
    return 0o037 if lent_by_root else 0o077


def curve_keys(secret: bytes) -> tuple[bytes, bytes]:
    """The cluster's CURVE key pair (public, private), in Z85: a keyed hash of the secret, clamped as X25519 asks."""
    key = bytearray(hmac.digest(secret, b"tandem curve 1", hashlib.sha256))
    key[0] &= 248
    key[31] = key[31] & 127 | 64
    private = zmq.utils.z85.encode(bytes(key))
    return zmq.curve_public(private), private


def socket_name(kind: str, group: str, rank: int, incarnation: int) -> str:
    """The file of one unix socket of a rank. Who looks for an earlier incarnation must not find the next one."""
    return f"{kind}-{group}-{rank}-{incarnation & 0xFFFF_FFFF:08x}"


def sweep(directory: str, group: str, rank: int) -> None:
    """Remove the unix sockets of all earlier incarnations of a rank: neither ZMQ nor a kill does. One that still runs
    is reached by nobody new from now on.
    """
    name = re.compile(rf"[a-z]+\d*-{re.escape(group)}-{rank}-[0-9a-f]{{8}}")
    for path in Path(directory).glob("*"):
        if name.fullmatch(path.name) and path.is_socket():
            path.unlink(missing_ok=True)


def check_where(where: str) -> None:
    """Raises ConfigError for a `where` at which `bind` will fail: better before a model is loaded than after."""
    if where.startswith("/"):
        _check_ours(where)
    else:
        tcp_address(where, 0)


def ipc_address(directory: str, name: str) -> str:
    """`ipc://directory/name`. Raises ConfigError unless the directory is ours alone and the path fits a socket."""
    _check_ours(directory)
    path = os.path.join(directory, name)
    if len(os.fsencode(path)) > MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"socket path {path} has {len(os.fsencode(path))} bytes, the system allows {MAX_IPC_PATH_BYTES}: "
            "choose a shorter run directory"
        )
    return f"ipc://{path}"


def _check_ours(directory: str) -> None:
    try:
        found = os.stat(directory)
    except OSError as error:
        raise ConfigError(f"run directory {directory}: {error.strerror}; create it with mode 0700") from None
    if not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o700 or found.st_uid != os.geteuid():
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"run directory {directory} has mode {mode:04o}: it must be a directory of ours, mode 0700")


def tcp_address(host: str, port: int) -> str:
    """`tcp://host:port`, or `*` for port 0. Raises ConfigError for a host that stands for all addresses."""
    if host in EVERYWHERE:
        raise ConfigError(f"bind address is {host!r}: name the one address that peers reach, never all of them")
    return f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"


def _limit(socket: "zmq.Socket[Any]", kind: int, high_water: int) -> None:
    """Bound what a socket may hold, and let it notice a peer that vanished without a word."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, high_water)
    socket.setsockopt(zmq.RCVHWM, high_water)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an unreachable peer is an error to count, not a silent drop
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a peer that reconnects is served before its old link times out
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IMMEDIATE, 1)  # else words for a dead incarnation would reach its successor


def _secure(socket: "zmq.Socket[Any]", keys: tuple[bytes, bytes], *, server: bool) -> None:
    public, private = keys
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, private)
    if server:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a running ZAP handler nobody gets in
    else:
        socket.setsockopt(zmq.CURVE_SERVERKEY, public)


class _Doorman:
    """The ZAP handler (ZMQ RFC 27) of one context: CURVE clients with the cluster's key come in, nobody else."""

    def __init__(self, context: "zmq.Context[Any]", public: bytes) -> None:
        self._allowed = zmq.utils.z85.decode(public)
        self._requests: zmq.Socket[bytes] = context.socket(zmq.REP, socket_class=zmq.Socket)
        self._orders: zmq.Socket[bytes] = context.socket(zmq.PAIR, socket_class=zmq.Socket)
        self._stop: zmq.Socket[bytes] = context.socket(zmq.PAIR, socket_class=zmq.Socket)
        self._requests.bind(ZAP_ENDPOINT)
        self._orders.bind(f"inproc://doorman-{id(self)}")
        self._stop.connect(f"inproc://doorman-{id(self)}")
        self._thread = threading.Thread(target=self._serve, name="zap", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._orders, zmq.POLLIN)
        try:
            while self._orders not in (ready := dict(poller.poll())):
                if self._requests in ready:
                    self._requests.send_multipart(self.answer(self._requests.recv_multipart()))
            self._requests.unbind(ZAP_ENDPOINT)  # at once; by `close` alone the name stays taken for a while
        except zmq.ContextTerminated:
            pass
        self._requests.close(0)
        self._orders.close(0)

    def answer(self, request: list[bytes]) -> list[bytes]:
        """The reply frames: version, request id, status, text, user id, metadata."""
        version, request_id, domain, _, _, mechanism, *credentials = request
        good = version == b"1.0" and domain == ZAP_DOMAIN and mechanism == b"CURVE" and len(credentials) == 1
        if good and hmac.compare_digest(credentials[0], self._allowed):
            # No user id: libzmq would queue it as a message of its own, and the socket would poll as readable.
            return [b"1.0", request_id, b"200", b"OK", b"", b""]
        return [b"1.0", request_id, b"400", b"not of this cluster", b"", b""]

    def stop(self) -> None:
        """Close the door: nobody new comes in."""
        if not self._stop.closed:
            self._stop.send(b"")
            self._thread.join()
            self._stop.close(0)


class Malformed(Exception):
    """A peer's bytes are no message of the expected type."""


def encode(message: msgspec.Struct | Sequence[msgspec.Struct]) -> bytes:
    """The bytes of one message, or of a list of them."""
    return msgspec.msgpack.encode(message)


class Decoder(Generic[T]):
    """Reads one union of message types, such as `messages.ToDecode`."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def __call__(self, data: bytes) -> T:
        """One message. Raises Malformed, whatever the bytes are."""
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:  # deep nesting in a field that would be skipped
            raise Malformed(str(error)) from None


class Inbox(Generic[T]):
    """Receives messages of one union from a PULL or DEALER socket. What is malformed is counted and skipped."""

    def __init__(self, socket: "zmq.Socket[bytes]", kind: Any) -> None:
        self.socket = socket
        self.malformed = 0
        self._decode: Decoder[T] = Decoder(kind)

    def receive(self) -> T | None:
        """The next message, or None if nothing has come. Never blocks."""
        while (frames := _frames(self.socket)) is not None:
            if len(frames) == 1:
                try:
                    return self._decode(frames[0])
                except Malformed:
                    pass
            self.malformed += 1
        return None


class RouterInbox(Generic[T]):
    """The same for a ROUTER socket: messages come with the identity of the peer that sent them."""

    def __init__(self, socket: "zmq.Socket[bytes]", kind: Any) -> None:
        self.socket = socket
        self.malformed = 0
        self._decode: Decoder[T] = Decoder(kind)

    def receive(self) -> tuple[bytes, T] | None:
        """The next (identity, message), or None if nothing has come. Never blocks."""
        while (frames := _frames(self.socket)) is not None:
            if len(frames) == 2:
                try:
                    return frames[0], self._decode(frames[1])
                except Malformed:
                    pass
            self.malformed += 1
        return None


def _frames(socket: "zmq.Socket[bytes]") -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def post(socket: "zmq.Socket[bytes]", *frames: bytes) -> bool:
    """Send without blocking. False: the queue is full or the peer is not there, and nothing was sent."""
    try:
        if len(frames) == 1:
            socket.send(frames[0], zmq.NOBLOCK)
        else:
            socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True
