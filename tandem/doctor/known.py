"""The known answer: memory for a pattern that one end writes and the other compares, byte for byte.

The first half of the memory is what this end sends, the second what the other writes. A seed tells both ends which
bytes are sent and to which pages, so that only addresses and seeds have to be exchanged.
"""

import hashlib

import numpy as np

from kvtransfer.transports.blocks import Block
from tandem.core.ids import LayerId, PageId
from tandem.core.messages import Region
from tandem.engine.memory import PageMemory

PAGE_BYTES = 4096
SPREAD = 2048
"""Pages that the pattern is scattered over; those between must stay zero."""
PATTERN = 1024
"""Pages of it: 4 MiB, and more blocks than one call of the transport takes."""
HALF = 4096
"""Pages of each half: 16 MiB."""
LARGE_BYTES = 1 << 20
OUT, IN = LayerId(0), LayerId(1)


class Known:
    """One end's memory; `region` is what a transport registers. Zero until the other end writes."""

    def __init__(self, seed: bytes) -> None:
        self._memory = PageMemory((OUT, LayerId(2)), HALF, PAGE_BYTES)
        self.region = self._memory.region
        self._memory.buffer[: PATTERN * PAGE_BYTES] = content(seed)

    def scattered(self, seed: bytes, there: Region) -> list[Block]:
        """Writes this end's pattern into the other's memory; `seed` is this end's."""
        return [
            (self.region.address(OUT, PageId(page)), there.address(IN, PageId(target)), PAGE_BYTES)
            for page, target in enumerate(places(seed))
        ]

    def large(self, there: Region) -> list[Block]:
        """Writes this end's half into the other's, in blocks that cannot be joined."""
        starts = range(0, HALF * PAGE_BYTES, LARGE_BYTES)
        source, target = self.region.address(OUT, PageId(0)), there.address(IN, PageId(0))
        return [(source + here, target + to, LARGE_BYTES) for here, to in zip(starts, reversed(starts), strict=True)]

    def compare(self, seed: bytes) -> str:
        """What is wrong with the pattern that the other end, whose seed this is, has written; nothing when all fits."""
        start = HALF * PAGE_BYTES
        found = np.frombuffer(self._memory.buffer[start : start + SPREAD * PAGE_BYTES], np.uint8)
        expected = np.zeros((SPREAD, PAGE_BYTES), np.uint8)
        expected[places(seed)] = np.frombuffer(content(seed), np.uint8).reshape(PATTERN, PAGE_BYTES)
        wrong = np.flatnonzero(found != expected.reshape(-1))
        if not len(wrong):
            return ""
        page, byte = divmod(int(wrong[0]), PAGE_BYTES)
        return (
            f"{len(wrong)} of {len(found)} bytes are wrong, first byte {byte} of page {page}: "
            f"{found[wrong[0]]:#04x} instead of {expected[page, byte]:#04x}"
        )


def content(seed: bytes) -> bytes:
    """The pattern of a seed: nothing that memory could hold by accident."""
    return hashlib.shake_128(seed).digest(PATTERN * PAGE_BYTES)


def places(seed: bytes) -> list[int]:
    """The page that each page of the pattern goes to; the same in all versions of Python."""
    order = sorted(range(SPREAD), key=lambda page: hashlib.sha256(seed + page.to_bytes(4, "big")).digest())
    return order[:PATTERN]
