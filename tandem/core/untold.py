"""Log-probabilities at rank 0: from when they come until their token is told. No frame has them."""

from collections import deque
from collections.abc import Callable

from tandem.core.ids import Room
from tandem.core.inputs import TokenLogprobs, Tokens
from tandem.core.requests import Logprobs


class Untold:
    """Tokens of a room are told in the order in which they were drawn. What is kept of a room goes with it."""

    def __init__(self) -> None:
        self._drawn: dict[Room, deque[tuple[int, Logprobs]]] = {}  # of tokens that are not told yet
        self._firsts: dict[Room, Logprobs] = {}  # of token 0, which decode tells again

    def __len__(self) -> int:
        return len(self._drawn) + len(self._firsts)

    def drawn(self, tokens: Tokens, told: TokenLogprobs, knows: Callable[[Room], bool]) -> None:
        """A tick's tokens are back. What was drawn for a room that nobody knows any more will never be told."""
        each = ((room, token) for room, sampled in tokens for token in sampled)
        for (room, token), logprobs in zip(each, told, strict=True):
            if logprobs is not None and knows(room):
                self._drawn.setdefault(room, deque()).append((token, logprobs))

    def first(self, room: Room, logprobs: Logprobs) -> None:
        """Those of token 0, drawn by the peer group; a second copy says nothing new."""
        self._firsts[room] = logprobs

    def of_first(self, room: Room) -> Logprobs | None:
        """Those of token 0, once it is told."""
        return self._firsts.get(room)

    def take(self, room: Room, index: int, token: int) -> Logprobs | None:
        """Those of a token that is told now."""
        if index == 0 and room in self._firsts:
            return self._firsts[room]
        if room not in self._drawn:
            return None
        drawn, logprobs = self._drawn[room].popleft()
        assert drawn == token, (room, index, token, drawn)
        if not self._drawn[room]:
            del self._drawn[room]
        if index == 0:
            self._firsts[room] = logprobs
        return logprobs

    def forget(self, room: Room) -> None:
        """Nothing more is told of a room."""
        self._drawn.pop(room, None)
        self._firsts.pop(room, None)
