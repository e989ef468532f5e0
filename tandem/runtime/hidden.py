"""Carries hidden states from one rank to the next, on a PUSH/PULL link of their own.

Between processes of one host the payload lies in a ring of slots in a shared file and the ZMQ message is only the
doorbell; between hosts, and when every slot is in use, it travels in the message. Either way the order is that of the
one link, nothing blocks, and what may wait is bounded.

| frames | message |
| --- | --- |
| header, payload | the payload itself |
| header, file name, (offset, bytes) | the payload lies there in the file |
"""

import contextlib
import mmap
import os
import secrets
import struct
from collections import deque
from pathlib import Path
from typing import Any

import zmq

from tandem.core.errors import ConfigError
from tandem.core.members import Member
from tandem.ports import HiddenOut
from tandem.runtime.links import MAX_MESSAGE_BYTES, Sockets, post

SLOTS = 8
"""Payloads in shared memory that the next rank has not released."""
MAX_QUEUED = 64
"""Messages that wait for the next rank; one more raises."""
COUNTER_BYTES = 64
"""The file's head, a cache line: how many slots the receiver has handed back, ever (uint64, written by it alone)."""
NAME = "hidden-"

_DOORBELL = struct.Struct("<QQ")  # offset in the file, bytes


class HiddenLinkFull(Exception):
    """More hidden states wait than the ring can have in flight: our bug, or a next rank that will be fenced."""


class RemoteOut:
    """HiddenOut to another host: each payload is copied into its message. Sends are made by one thread."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket

    def send(self, header: bytes, payload: memoryview) -> None:
        """Copy and queue. Raises HiddenLinkFull when MAX_QUEUED messages wait, ValueError over MAX_MESSAGE_BYTES."""
        if payload.nbytes > MAX_MESSAGE_BYTES:
            raise ValueError(f"a payload of {payload.nbytes} bytes: one message holds {MAX_MESSAGE_BYTES}")
        _push(self._socket, header, payload)

    def close(self) -> None:
        """Drop what waits."""
        self._socket.close(0)


class SharedOut:
    """HiddenOut to a process of this host: payloads go through `slots` slots of a file in `directory`.

    Raises OSError when the file cannot be made or has no room there.

    The next rank unlinks the file when it maps it, so that not even a double SIGKILL leaves it behind. Make a new
    SharedOut for a new incarnation of the next rank.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", directory: Path, slot_bytes: int, slots: int = SLOTS) -> None:
        self._socket = socket
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._slots = slots
        self._path = directory / f"{NAME}{secrets.token_hex(8)}"
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = COUNTER_BYTES + slots * self._slot_bytes
            os.posix_fallocate(file, 0, size)  # a full file system raises here, not as SIGBUS in `send`
            self._map = mmap.mmap(file, size)
        except OSError:
            self._path.unlink()
            raise
        finally:
            os.close(file)
        self._bytes = memoryview(self._map)
        self._handed_back = self._bytes[:8].cast("Q")
        self._filled = 0

    def send(self, header: bytes, payload: memoryview) -> None:
        """Copy into a free slot, or into the message when there is none.

        Raises HiddenLinkFull when MAX_QUEUED messages wait, ValueError for a payload longer than a slot.
        """
        if payload.nbytes > self._slot_bytes:
            raise ValueError(f"a payload of {payload.nbytes} bytes: slots hold {self._slot_bytes}")
        if self._filled - self._handed_back[0] >= self._slots:
            _push(self._socket, header, payload)
            return
        start = COUNTER_BYTES + self._filled % self._slots * self._slot_bytes
        self._bytes[start : start + payload.nbytes] = payload.cast("B")
        _push(self._socket, header, self._path.name.encode(), _DOORBELL.pack(start, payload.nbytes))
        self._filled += 1

    def close(self) -> None:
        """Drop what waits; the receiver keeps what it has mapped."""
        self._socket.close(0)
        self._handed_back.release()
        self._bytes.release()
        self._map.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


class PulledIn:
    """HiddenIn: understands both kinds of message. `socket` is for the driver's poller; one thread uses it.

    `directory` is where the previous rank's file may lie; None: it is on another host.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", directory: Path | None) -> None:
        self.socket = socket
        self.malformed = 0
        self._directory = directory
        self._ring: _Ring | None = None
        self._lent: deque[_Ring | None] = deque()

    def receive(self) -> tuple[bytes, memoryview] | None:
        """The next (header, payload), in the order sent, or None if nothing has come. Malformed messages are counted.

        The payload is not to be written, and is valid until its `release`.
        """
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            if len(frames) == 2:
                self._lent.append(None)
                return frames[0].bytes, frames[1].buffer
            payload = self._in_file(frames)
            if payload is not None:
                self._lent.append(self._ring)
                return frames[0].bytes, payload
            self.malformed += 1

    def release(self) -> None:
        """The oldest payload that `receive` returned has been consumed; its slot may be filled again."""
        ring = self._lent.popleft()
        if ring is not None:
            ring.handed_back[0] += 1

    def close(self) -> None:
        """Drop what has not been received. Files are unmapped when the last payload in them is dropped."""
        self.socket.close(0)
        self._lent.clear()
        self._ring = None

    def _in_file(self, frames: list[Any]) -> memoryview | None:
        """The payload that a doorbell speaks of; None if the message is malformed or the file went with its sender."""
        if len(frames) != 3 or len(frames[2]) != _DOORBELL.size or self._directory is None:
            return None
        if self._ring is None or self._ring.name != frames[1].bytes:
            try:
                self._ring = _Ring(self._directory, frames[1].bytes)
            except (OSError, ValueError):
                return None
        start, length = _DOORBELL.unpack(frames[2].buffer)
        return self._ring.bytes[start : start + length] if start + length <= self._ring.bytes.nbytes else None


class _Ring:
    """The receiver's view of a sender's file. Unmapped when nothing refers to it or to a payload any more."""

    def __init__(self, directory: Path, name: bytes) -> None:
        """Map and unlink. Raises OSError or ValueError when there is no such file, or the name leads elsewhere."""
        text = name.decode()
        if not text.startswith(NAME) or not text.removeprefix(NAME).isalnum():
            raise ValueError(text)
        file = os.open(directory / text, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.bytes = memoryview(mmap.mmap(file, 0))
        finally:
            os.close(file)
        os.unlink(directory / text)
        self.name = name
        self.handed_back = self.bytes[:8].cast("Q")


def open_in(sockets: "Sockets[zmq.Socket[bytes]]", where: str, name: str, directory: str) -> tuple[PulledIn, str]:
    """Bind the receiving end (`where` and `name` as in Sockets.bind); returns it with `Member.hidden`."""
    socket, address = sockets.bind(zmq.PULL, where, name, high_water=MAX_QUEUED)
    return PulledIn(socket, Path(directory)), address


def open_out(
    sockets: "Sockets[zmq.Socket[bytes]]", host: str, to: Member, directory: str, slot_bytes: int
) -> HiddenOut:
    """The sending end to the next rank: shared memory when it is on this host, else in messages.

    `slot_bytes` is the longest payload: tokens per tick times bytes per token. `directory` must be the one that the
    next rank was given, on memory (/dev/shm) if there is a choice. Raises ConfigError when a message or the directory
    cannot hold that.
    """
    if slot_bytes > MAX_MESSAGE_BYTES:
        raise ConfigError(
            f"--max-prefill-tokens or --max-rooms: one tick's hidden states take {slot_bytes} bytes, at most "
            f"{MAX_MESSAGE_BYTES} fit into a message: give less"
        )
    socket = sockets.connect(zmq.PUSH, to.hidden, high_water=MAX_QUEUED)
    if host != to.host:
        return RemoteOut(socket)
    try:
        return SharedOut(socket, Path(directory), slot_bytes)
    except OSError as error:
        socket.close(0)
        raise ConfigError(
            f"--run-dir is {directory!r}: {SLOTS} ticks' hidden states of {slot_bytes} bytes find no room there, "
            f"{error.strerror}; give another, or less --max-prefill-tokens or --max-rooms"
        ) from None


def _push(socket: "zmq.Socket[bytes]", *frames: Any) -> None:
    if not post(socket, *frames):
        raise HiddenLinkFull(f"{MAX_QUEUED} hidden states wait for the next rank")
