"""Which requests may be what kills groups: those that were on two when they were lost, and what equals them."""

import hashlib
from collections.abc import Iterable

import numpy as np

from tandem.core.members import Member
from tandem.core.requests import Work

CRASHES_MAX = 2
"""So many groups may be lost with a request on them, unless they were told to end."""
FURTHER = 16
"""Tokens between two crashes that exonerate: what kills a group kills the next one at the same place."""
QUARANTINE_S = 600.0
PROMPTS_MAX = 1024
"""Prompts that are remembered; one more takes the place of the oldest."""


class Losses:
    """The groups that one request has lost."""

    def __init__(self) -> None:
        self.count = 0
        self.crashed: list[str] = []
        """Those that count against the request."""
        self._together: set[int] = set()
        self._tokens = 0  # at the last of them

    def add(self, group: str, heads: Iterable[Member], tokens: int, *, crashed: bool) -> None:
        """`heads` are of all groups of the attempt. Only one of them counts: the two of a pair may fall together.

        `tokens` is what the client has so far.
        """
        self.count += 1
        known = [head.incarnation for head in heads]
        lost = next(head for head in heads if head.group.name == group)
        if crashed and lost.incarnation not in self._together:
            if tokens >= self._tokens + FURTHER:
                self.crashed.clear()
            self._tokens = tokens
            self.crashed.append(group)
            self._together.update(known)

    @property
    def suspicious(self) -> bool:
        """It is not tried again."""
        return len(self.crashed) >= CRASHES_MAX


class Quarantine:
    """Prompts of such requests, for ten minutes. Only greedy requests are equal: other draws take another way."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def put(self, work: Work, now: float) -> None:
        """Remember the prompt of the work, as the client sent it."""
        if work.sampling.temperature > 0:
            return
        key = _digest(work.prompt)
        self._until.pop(key, None)
        self._until[key] = now + QUARANTINE_S
        while len(self._until) > PROMPTS_MAX:
            del self._until[next(iter(self._until))]

    def left_s(self, work: Work, now: float) -> float:
        """For how long equal requests are still refused; 0 when they are not."""
        self._forget(now)
        if not self._until or work.sampling.temperature > 0:
            return 0.0
        return self._until.get(_digest(work.prompt), now) - now

    def _forget(self, now: float) -> None:
        for key, until in list(self._until.items()):
            if until > now:  # the oldest come first
                return
            del self._until[key]


def _digest(prompt: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(np.array(prompt, np.int64).tobytes(), digest_size=16).digest()
