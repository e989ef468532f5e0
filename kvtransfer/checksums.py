"""Digests of page blocks: made where a block is sent, compared where it has landed."""

import zlib
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Thread

from tandem.core.effects import Verify
from tandem.core.events import Verified
from tandem.core.ids import LayerId, PageId
from tandem.ports import Memory


def digests(memory: Memory, layer: LayerId, pages: Iterable[PageId]) -> tuple[int, ...]:
    """CRC-32 of each page's block of a layer."""
    return tuple(zlib.crc32(memory.block(layer, page)) for page in pages)


class Verifying:
    """Compares blocks that have landed with what was sent, on a thread of its own: reading them takes a while."""

    def __init__(self, memory: Memory, tell: Callable[[Verified], None]) -> None:
        self._memory = memory
        self._tell = tell
        self._waiting: SimpleQueue[Verify | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="verify", daemon=True)
        self._thread.start()

    def verify(self, effect: Verify) -> None:
        """Queue a comparison; Verified tells how it went."""
        self._waiting.put(effect)

    def close(self, timeout_s: float) -> None:
        """End after what is queued."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (effect := self._waiting.get()) is not None:
            self._tell(Verified(effect.commit, intact(self._memory, effect)))


def intact(memory: Memory, effect: Verify) -> bool:
    """Whether the blocks are what was sent."""
    pages, sent = zip(*effect.checks, strict=True)
    return digests(memory, effect.commit.layer, pages) == sent
