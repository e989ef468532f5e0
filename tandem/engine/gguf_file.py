"""The header of a GGUF file: its metadata and where its tensors lie, read without numpy copies of the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads the same in 3 s, because it
wraps each of 100,000 tokenizer strings in arrays; every rank reads this at start.
"""

import mmap
import struct
from pathlib import Path

import msgspec

from tandem.core.errors import ConfigError

Value = int | float | bool | str | list["Value"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor: rows outermost (the reverse of the file's order); `offset` counts bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    kind: int  # GGMLQuantizationType
    offset: int


class Header(msgspec.Struct, frozen=True):
    """All there is in a GGUF file but the weights. `data_start` is the offset of the first tensor."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    data_start: int

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number. Raises ConfigError when it is missing without a default, or something else."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int):
            raise ConfigError(f"the GGUF file's {key!r} is {value!r}: a whole number was expected")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number. Raises ConfigError when it is missing without a default, or something else."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise ConfigError(f"the GGUF file's {key!r} is {value!r}: a number was expected")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Raises ConfigError when it is missing without a default, or something else."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"the GGUF file's {key!r} is {value!r}: a string was expected")
        return value

    def items(self, key: str) -> list[Value]:
        """A list. Raises ConfigError when it is missing or something else."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise ConfigError(f"the GGUF file has no list {key!r}: it is damaged, or not a language model")
        return value


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def count(self) -> int:
        return int(self.scalar("Q"))

    def string(self) -> str:
        length = self.count()
        if self.at + length > len(self.data):
            raise ValueError("a string runs over the end")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, length = int(self.scalar("I")), self.count()
        if item in (_STRING, _ARRAY):
            return [self.value(item) for _ in range(length)]
        code = f"<{length}{_SCALARS[item]}"
        values = list(struct.unpack_from(code, self.data, self.at))
        self.at += struct.calcsize(code)
        return values


def read_header(path: Path) -> Header:
    """Read a GGUF file's header. Raises ConfigError when the file is not one, or is cut short."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"model {str(path)!r} is not a GGUF file: it does not begin with the letters GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(_Cursor(data))
            except (struct.error, KeyError, ValueError, OverflowError, MemoryError) as error:
                raise ConfigError(f"model {str(path)!r} is damaged or cut short: {error}") from error


def _parse(cursor: _Cursor) -> Header:
    cursor.at = 4
    version = int(cursor.scalar("I"))
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version} is unknown; known are {_VERSIONS}")
    tensor_count, key_count = cursor.count(), cursor.count()
    metadata: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(int(cursor.scalar("I")))
    found = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {t.name: msgspec.structs.replace(t, offset=t.offset + start) for t in found}
    return Header(metadata=metadata, tensors=tensors, data_start=start)


def _tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    shape = tuple(cursor.count() for _ in range(int(cursor.scalar("I"))))
    return TensorInfo(name=name, shape=shape[::-1], kind=int(cursor.scalar("I")), offset=cursor.count())
