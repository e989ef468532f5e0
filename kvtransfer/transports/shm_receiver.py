"""The receiving end of the shm transport: one thread that copies what writers ask for out of their memory into ours."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import selectors
import socket
import threading
from collections.abc import Sequence

import numpy as np

from kvtransfer.transports.blocks import Block
from kvtransfer.transports.shm_packets import MAX_PACKET_BYTES, Answer, Attach, Copy, ToReceiver
from tandem.core.errors import ConfigError
from tandem.runtime.links import Decoder, Malformed, encode

MAX_WRITERS = 256
"""Connections at once; one more is closed at once. They also wait in this number to be accepted."""
PIECE_BYTES = 16 << 20
"""Copied without a look at whether the receiver closes: a few milliseconds."""


class Receiver:
    """Listens on a unix socket. Nobody else writes into our memory, so nothing lands once `close` has returned."""

    def __init__(self, path: str, endpoint: str) -> None:
        """`endpoint` is what a writer must say that it wants to reach. Raises ConfigError when `path` cannot be bound.

        What a dead process left at `path` is removed; a process that still listens there is cut off from new writers.
        """
        self._endpoint = endpoint
        self._base = self._end = 0
        self._closing = False
        self._listener = _listen(path)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._writers: dict[socket.socket, _Writer] = {}
        self._decode: Decoder[ToReceiver] = Decoder(ToReceiver)
        self._thread = threading.Thread(target=self._run, name="shm receiver", daemon=True)
        self._thread.start()

    def register(self, base: int, length: int) -> None:
        """Let writers reach [base, base + length) of our memory, and nothing else."""
        self._base, self._end = base, base + length

    def close(self) -> None:
        """Stop copying, after the piece that is being copied, and close all connections."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._selector.close()
        self._listener.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and not self._serve(key.fileobj):
                    self._drop(key.fileobj)
        for connection in list(self._writers):
            self._drop(connection)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        if len(self._writers) >= MAX_WRITERS:
            connection.close()
            return
        connection.setblocking(False)
        self._writers[connection] = _Writer()
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._writers.pop(connection).detach()
        connection.close()

    def _serve(self, connection: socket.socket) -> bool:
        """Take one packet and answer it; False when nothing more is to be said on this connection."""
        try:
            data, files, flags, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        with contextlib.ExitStack() as undo:
            for file in files:
                undo.callback(os.close, file)
            if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                return False
            try:
                packet = self._decode(data)
            except Malformed:
                return False
            if _hung_up(connection):  # it has given up, perhaps while this process was stopped
                return False
            answer = self._answer(self._writers[connection], packet, files)
        return answer is not None and _send(connection, answer)

    def _answer(self, writer: "_Writer", packet: ToReceiver, files: list[int]) -> Answer | None:
        """None when the receiver closes before all is copied."""
        match packet:
            case Attach(endpoint=endpoint):
                return Answer(self._attach(writer, endpoint, files))
            case Copy(blocks=blocks):
                if (detail := self._outside(writer, blocks)) is not None:
                    return Answer(detail)
                return Answer() if self._copy(writer, blocks) else None

    def _attach(self, writer: "_Writer", endpoint: str, files: list[int]) -> str:
        """Why not, or nothing."""
        if endpoint != self._endpoint:
            return f"{endpoint} is gone: another process listens there now"
        if not files:
            return "no memory came with the first packet"
        try:
            writer.attach(files[0])
        except (OSError, ValueError) as error:
            return f"its memory cannot be mapped: {error}"
        return ""

    def _outside(self, writer: "_Writer", blocks: Sequence[Block]) -> str | None:
        """The first block that is not whole in the writer's memory and in ours, in words."""
        for source, destination, length in blocks:
            if min(source, length) < 0 or source + length > writer.length:
                return f"{length} bytes at offset {source}: the writer's memory has {writer.length}"
            if destination < self._base or destination + length > self._end:
                return f"{length} bytes to {destination:#x}: only {self._base:#x} to {self._end:#x} is open"
        return None

    def _copy(self, writer: "_Writer", blocks: Sequence[Block]) -> bool:
        """Without the GIL. False if the receiver closes meanwhile: the rest is never copied."""
        for source, destination, length in blocks:
            done = 0
            while done < length:
                if self._closing:
                    return False
                size = min(PIECE_BYTES, length - done)
                ctypes.memmove(destination + done, writer.base + source + done, size)
                done += size
        return True


class _Writer:
    """A writer's memory, for as long as its connection lives; empty until it has come."""

    def __init__(self) -> None:
        self.base = self.length = 0
        self._map: mmap.mmap | None = None

    def attach(self, file: int) -> None:
        """Map a memfd for reading. Raises OSError or ValueError unless it is one that can never shrink."""
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it may shrink, and reading what has gone would kill this process")
        self.detach()
        self._map = mmap.mmap(file, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self.base, self.length = int(np.frombuffer(self._map, np.uint8).ctypes.data), len(self._map)

    def detach(self) -> None:
        """Unmap it."""
        if self._map is not None:
            self.length = 0
            self._map.close()
            self._map = None


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        listener.listen(MAX_WRITERS)
    except OSError as error:
        listener.close()
        raise ConfigError(f"run directory: cannot listen on {path}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def _hung_up(connection: socket.socket) -> bool:
    """Whether nothing more will come."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(connection: socket.socket, answer: Answer) -> bool:
    """False if the writer has gone, or asks without reading answers."""
    try:
        connection.send(encode(answer))
    except OSError:
        return False
    return True
