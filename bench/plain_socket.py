"""Blocks over one plain TCP connection: what the kernel's loopback gives to whoever asks for nothing more."""

import socket
import struct
import threading
from collections.abc import Sequence

import msgspec

from kvtransfer.transports.blocks import Block

PATIENCE_S = 60.0
HEAD = struct.Struct("!I")
DONE = b"."
Places = list[tuple[int, int]]
"""(offset in the receiver's pool, bytes) of each block, in the order of the bytes that follow."""


class Sink:
    """Receives into a pool, on a thread. `port` is where one writer may connect."""

    def __init__(self, host: str, pool: memoryview) -> None:
        self._server = socket.create_server((host, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._run, args=(pool,), name="plain socket", daemon=True).start()

    def _run(self, pool: memoryview) -> None:
        with self._server:
            connection, _ = self._server.accept()
        receive(connection, pool)


def receive(connection: socket.socket, pool: memoryview) -> None:
    """Take writes until the writer leaves. The next head is waited for without a deadline."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        while head := connection.recv(HEAD.size, socket.MSG_WAITALL):
            places = _exactly(connection, HEAD.unpack(head)[0])
            for offset, length in msgspec.msgpack.decode(places, type=Places):
                _fill(connection, pool[offset : offset + length])
            connection.sendall(DONE)


class Plain:
    """The writing end. Blocks are (offset in our pool, offset in the receiver's, bytes) triples."""

    def __init__(self, host: str, port: int, pool: memoryview) -> None:
        """Raises OSError."""
        self._pool = pool
        self._connection = socket.create_connection((host, port), PATIENCE_S)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def write(self, blocks: Sequence[Block]) -> None:
        """Return when all have been received. Raises OSError."""
        places = msgspec.msgpack.encode([(destination, length) for _, destination, length in blocks])
        self._connection.sendall(HEAD.pack(len(places)) + places)
        for source, _, length in blocks:
            self._connection.sendall(self._pool[source : source + length])
        if self._connection.recv(len(DONE)) != DONE:
            raise ConnectionError("the receiver has left")

    def close(self) -> None:
        """Leave."""
        self._connection.close()


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    _fill(connection, memoryview(data))
    return data


def _fill(connection: socket.socket, view: memoryview) -> None:
    """Raises ConnectionError when the writer leaves in between."""
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the writer left in the middle of a block")
        view = view[got:]
