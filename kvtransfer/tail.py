"""The bytes behind a rank's page pool: 64 of them for each rank that it meets, where the known answer is written."""

from typing import Protocol

from kvtransfer.handshake import ANSWER_BYTES, Key
from tandem.core.messages import Region


class TailBytes(Protocol):
    """What lies behind a pool: a memoryview, or what stands for memory that the CPU cannot reach."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes | memoryview: ...

    def __setitem__(self, where: slice, what: bytes, /) -> None: ...


class Tail:
    """Whose slot lies where. A rank keeps its slot. `slot` is for one thread, the rest for any."""

    def __init__(self, region: Region, memory: TailBytes) -> None:
        """`memory` are the bytes that follow the region's."""
        self._base = region.base + region.bytes
        self._memory = memory
        self._slots: dict[Key, int] = {}

    def slot(self, key: Key) -> int | None:
        """Where a rank's slot begins; None if there are more ranks than slots."""
        known = self._slots.get(key)
        if known is not None:
            return known
        begin = len(self._slots) * ANSWER_BYTES
        if begin + ANSWER_BYTES > len(self._memory):
            return None
        self._slots[key] = begin
        return begin

    def address(self, slot: int) -> int:
        """Of a slot, in this process."""
        return self._base + slot

    def read(self, slot: int) -> bytes:
        """What a slot holds."""
        return bytes(self._memory[slot : slot + ANSWER_BYTES])

    def write(self, slot: int, answer: bytes) -> None:
        """Fill a slot."""
        self._memory[slot : slot + ANSWER_BYTES] = answer
