"""What every group's prefix cache holds, as rank 0 of the group tells it, and how much of a prompt is there.

A page is known by the hash of all tokens up to its end (`core.journal`), so a prompt's last known page says that all
before it are known as well, and it is found by halves.
"""

from collections.abc import Sequence

from tandem.core.journal import chain, numbers, root_hash
from tandem.core.messages import Cached
from tandem.core.prefixes import TOKEN_BYTES, packed


class Hashed:
    """A prompt, with the hashes of its pages. They are computed once for each page size."""

    def __init__(self, prompt: Sequence[int], salt: str) -> None:
        self.prompt = prompt
        self.salt = salt
        self._packed = b""
        self._pages: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.prompt)

    def pages(self, page_size: int) -> list[int]:
        """The hashes of its whole pages. A hundred thousand tokens cost some milliseconds."""
        pages = self._pages.get(page_size)
        if pages is None:
            self._packed = self._packed or packed(self.prompt)
            pages = self._pages[page_size] = numbers(chain(root_hash(self.salt), self._packed, page_size * TOKEN_BYTES))
        return pages


class Index:
    """One group's cache. It is exact up to the last message; prompts that were sent there count as if they were."""

    def __init__(self) -> None:
        self.number = 0
        """So far the group was understood."""
        self._cached: set[int] = set()
        self._coming: dict[int, int] = {}  # pages of prompts that are on their way, and of how many

    def __len__(self) -> int:
        return len(self._cached)

    def on_cached(self, message: Cached) -> None:
        """What has changed. After a gap nothing is taken: the group will see from `number` what is missing."""
        if message.after not in (0, self.number):
            return
        if message.after == 0:
            self._cached.clear()
        self._cached.difference_update(message.removed)
        self._cached.update(message.stored)
        self.number = message.number

    def coming(self, pages: Sequence[int]) -> None:
        """A prompt with these pages was sent to the group."""
        for page in pages:
            self._coming[page] = self._coming.get(page, 0) + 1

    def gone(self, pages: Sequence[int]) -> None:
        """It is on its way no more: the group says itself what it has of it."""
        for page in pages:
            left = self._coming[page] - 1
            if left:
                self._coming[page] = left
            else:
                del self._coming[page]

    def start_over(self) -> None:
        """Another connection, or another epoch: nothing is known of its cache."""
        self.number = 0
        self._cached.clear()

    def overlap(self, pages: Sequence[int]) -> int:
        """So many first pages of a prompt are there, or on their way."""
        cached, coming = self._cached, self._coming
        low, high = 0, len(pages)
        while low < high:
            middle = low and (low + high) // 2  # most prompts begin as none before
            if pages[middle] in cached or pages[middle] in coming:
                low = middle + 1
            else:
                high = middle
        return low

    def holds(self) -> frozenset[int]:
        """Every page, for tests and the simulator."""
        return frozenset(self._cached)
