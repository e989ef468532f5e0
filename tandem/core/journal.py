"""What rank 0 tells routers of its prefix cache: each page under a hash of all tokens up to its end, change by change.

The hash of a page is 64 bits of blake2b over the hash of the page before it and its own tokens; before the first page
comes a hash of the salt. So whoever knows a prompt and its salt knows the hashes of its pages, and one page that is
known says that all before it are.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from tandem.core.ids import PageId
from tandem.core.messages import Cached

HASH_BYTES = 8
LOG_CHANGES = 1 << 16
"""Changes that are remembered at least; who has missed more begins anew with all that is cached."""
PIECE_CHANGES = 4096
"""Changes of one message, so that it stays far below what a router reads."""
AHEAD_CHANGES = 1 << 18
"""That a router may be told before it says that it has understood: some two MiB."""


def root_hash(salt: str) -> bytes:
    """What stands before the first page of a prompt. Prompts of different salts have no page in common."""
    key = blake2b(salt.encode()).digest()
    return blake2b(key=key, digest_size=HASH_BYTES).digest()


def chain(parent: bytes, tokens: bytes, page_bytes: int) -> list[bytes]:
    """The hashes of the whole pages of `tokens` that follow the page with the hash `parent`."""
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        parent = blake2b(parent + tokens[start : start + page_bytes], digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


def numbers(hashes: Sequence[bytes]) -> list[int]:
    """Hashes as they go over the wire."""
    joined: list[int] = np.frombuffer(b"".join(hashes), "<u8").tolist() if hashes else []
    return joined


class Journal:
    """Rank 0's, beside its prefix cache: it is told of every change and never changes a decision.

    Changes are numbered from 1. The log holds the newest of them, stored ones as their hash and removed ones as its
    complement, which is negative.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the newest change."""
        self.floor = 0
        """Changes after this one are in the log."""
        self._hashes: dict[PageId, bytes] = {}
        self._log: list[int] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def stored(self, before: PageId | None, salt: str, tokens: bytes, pages: Sequence[PageId]) -> None:
        """These pages with these tokens can be found from now on, behind the page `before`; None: they are first."""
        parent = root_hash(salt) if before is None else self._hashes[before]
        hashes = chain(parent, tokens, len(tokens) // len(pages))
        self._hashes.update(zip(pages, hashes, strict=True))
        self._add(numbers(hashes))

    def removed(self, pages: Sequence[PageId]) -> None:
        """These pages cannot be found any more."""
        self._add([~number for number in numbers([self._hashes.pop(page) for page in pages])])

    def flushed(self) -> None:
        """Nothing can be found any more. Whoever listens begins anew."""
        self._hashes.clear()
        self._log.clear()
        self.number += 1
        self.floor = self.number

    def _add(self, changes: list[int]) -> None:
        self._log += changes
        self.number += len(changes)
        if len(self._log) > 2 * LOG_CHANGES:
            del self._log[:-LOG_CHANGES]
            self.floor = self.number - len(self._log)

    def everything(self) -> list[int]:
        """Every page that can be found."""
        return numbers(list(self._hashes.values()))

    def after(self, number: int) -> list[int]:
        """The next changes after this one, which must be in the log; at most PIECE_CHANGES."""
        assert self.floor <= number <= self.number
        start = number - self.floor
        return self._log[start : start + PIECE_CHANGES]


class Telling:
    """What one router has been told of the journal, and what comes next.

    It counts what it tells, so that no number ever stands for two states of the router: first all that is cached, in
    pieces, then what has changed since. A router that has missed something is told again from there, out of the log,
    or anew.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known = 0  # up to here the router has understood
        self._known_at_least = 0  # once it understands anything that was said anew
        self._told = 0
        self._most = 0  # that it was ever told
        self._whole: list[int] = []  # what is left to tell of all that was cached
        self._anew = False
        self._changes_from = 0  # what is told after this number are changes since then
        self._lead = 0  # of these numbers before those of the journal
        self._begin()

    def _begin(self) -> None:
        self._whole, self._anew = self._journal.everything(), self._journal.number > 0
        self._told = self._known_at_least = self._most
        self._changes_from = self._most + (max(1, len(self._whole)) if self._anew else 0)
        self._lead = self._changes_from - self._journal.number

    def heard(self, number: int) -> None:
        """The router has understood all up to this number. Twice the same, and more was told: the rest is lost."""
        if number == self._known and number < self._told:
            if not self._in_log(number):
                self._begin()
            else:
                self._told = number
        self._known = number

    def _in_log(self, number: int) -> bool:
        return number >= self._changes_from and number - self._lead >= self._journal.floor

    def next(self) -> Cached | None:
        """What the router is to be told now, at most AHEAD_CHANGES before it says that it has understood."""
        if self._told - max(self._known, self._known_at_least) > AHEAD_CHANGES:
            return None
        if self._anew or self._whole:
            piece = self._whole[:PIECE_CHANGES]
            return Cached(0 if self._anew else self._told, self._told + max(1, len(piece)), tuple(piece), ())
        if not self._in_log(self._told):
            self._begin()
            return self.next()
        changes = self._journal.after(self._told - self._lead)
        return _net(self._told, changes) if changes else None

    def told(self, what: Cached) -> None:
        """It was sent."""
        del self._whole[:PIECE_CHANGES]
        self._anew = False
        self._told = what.number
        self._most = max(self._most, self._told)


def _net(after: int, changes: Sequence[int]) -> Cached:
    """What the changes come to."""
    last = {change if change >= 0 else ~change: change >= 0 for change in changes}
    stored = tuple(known for known, here in last.items() if here)
    removed = tuple(known for known, here in last.items() if not here)
    return Cached(after, after + len(changes), stored, removed)
