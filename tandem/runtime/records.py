"""Flight records as files: what a dump and a --record-dir file look like, for those who write them and for replay.

A line that names the format, then messages, each after its length in 4 bytes, big-endian: a Heading, and one Entry per
tick. They hold token ids, so the files are private (mode 0600).
"""

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from tandem.core.config import Group, Limits
from tandem.core.errors import ConfigError
from tandem.core.ids import Epoch, RankId, Room, Tick
from tandem.core.messages import PROTOCOL, Fact
from tandem.core.plan import Plan
from tandem.core.recorder import Entry

FORMAT = b"tandem flight record, protocol "
FIRST_LINE = FORMAT + f"{PROTOCOL}\n".encode()
LENGTH = struct.Struct(">I")

T = TypeVar("T")

encode = msgspec.msgpack.Encoder().encode


class Ending(msgspec.Struct, frozen=True):
    """How the epoch ended for a rank, and what it was doing."""

    cause: str
    tick: Tick  # the last one stepped
    awaiting: str | None
    queues: tuple[int, ...]
    pages: dict[str, int]
    in_hand: tuple[Plan, ...]  # plans that wait for hidden states, or whose forward has not ended
    facts: tuple[tuple[Room, Fact], ...]
    stale: int  # messages of other epochs


class Heading(msgspec.Struct, frozen=True):
    """Whose record it is: all that is needed to build its scheduler again. `ending` is there in dumps only."""

    group: Group
    rank: RankId
    epoch: Epoch
    limits: Limits
    ending: Ending | None = None


def create(path: Path) -> BinaryIO:
    """A new file that only its owner can read; its folder is made if need be. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file as `create` makes it, but it is there when all of it is written, or not at all. Raises OSError."""
    part = path.with_name(f"{path.name}.part")
    try:
        with create(part) as file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)  # not there when all went well


def begin(file: BinaryIO, heading: Heading) -> None:
    """Write what comes before the entries, so that it can be read. Raises OSError."""
    file.write(FIRST_LINE + framed([encode(heading)]))
    file.flush()


def framed(messages: Iterable[bytes]) -> bytes:
    """Encoded messages, each after its length."""
    return b"".join(part for message in messages for part in (LENGTH.pack(len(message)), message))


class Record:
    """A flight record that has been written."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if the file cannot be read, or is no flight record of this protocol."""
        self.path = path
        self.cut = False
        """Whether the last entry was cut off; known when all have been read."""
        with self._open() as file:
            message = self._next(file)
        if message is None:
            raise ConfigError(f"{path}: it is cut off before its first tick")
        self.heading = self._decoded(message, Heading, "its heading")

    def entries(self) -> Iterator[Entry]:
        """Every tick, oldest first. Raises ConfigError for what is malformed."""
        tick: Tick | None = None
        with self._open() as file:
            self._next(file)
            while (message := self._next(file)) is not None:
                entry = self._decoded(message, Entry, "its first tick" if tick is None else f"what follows tick {tick}")
                if tick is not None and entry.frame.tick != tick + 1:
                    raise ConfigError(f"{self.path}: tick {entry.frame.tick} follows tick {tick}")
                tick = entry.frame.tick
                yield entry

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        """The file, behind its first line."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self.path}: it cannot be read, {error.strerror}") from None
        with file:
            line = file.readline(len(FIRST_LINE) + len(FORMAT))
            if not line.startswith(FORMAT):
                raise ConfigError(f"{self.path}: this is not a flight record")
            if line != FIRST_LINE:
                theirs = line.removeprefix(FORMAT).strip().decode(errors="replace")
                raise ConfigError(f"{self.path}: it was written with protocol {theirs}, this is protocol {PROTOCOL}")
            yield file

    def _next(self, file: BinaryIO) -> bytes | None:
        """The next message, None at the end."""
        length = file.read(LENGTH.size)
        if len(length) == LENGTH.size:
            (size,) = LENGTH.unpack(length)
            if file.tell() + size <= os.fstat(file.fileno()).st_size:
                return file.read(size)
        self.cut = bool(length)
        return None

    def _decoded(self, message: bytes, kind: type[T], place: str) -> T:
        try:
            return msgspec.msgpack.decode(message, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: {place} is malformed: {error}") from None
