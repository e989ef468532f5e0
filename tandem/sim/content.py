"""What the fake model must compute for one request, cell by cell: a second reading of the formulas in `engine.fake`.

It knows no pages, chunks or stages. Vectors run over positions for the prompt and over layers for what is generated.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from tandem.core.ids import LayerId
from tandem.core.requests import Logprobs, Work
from tandem.engine.fake import SEED, history_of, logprobs_of, token_of, weight
from tandem.engine.model import FAKE_CELL_BYTES
from tandem.engine.splitmix import MASK, MIX_1, MIX_2

U64 = NDArray[np.uint64]


class Content:
    """Expected cells [layers, positions, 2], hidden states by stage boundary, and what is generated."""

    def __init__(self, work: Work, layers: int) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs | None] = []
        self._layers = layers
        count = work.last_position
        self.cells = np.zeros((layers, count, 2), np.uint64)
        self._totals = np.zeros((layers, count), np.uint64)  # summed over layers up to each
        self._hidden: dict[int, bytes] = {}
        if work.prompt:
            self._read(work)
            self._generate(work)

    def _read(self, work: Work) -> None:
        """The prompt, all positions at once."""
        count = len(work.prompt)
        b, w, x = (_weights(stream, self.cells.shape[1])[:count] for stream in (0, 1, 2))
        prefix = np.uint64(SEED) + ((np.array(work.prompt, np.uint64) + np.uint64(1)) * b).cumsum()
        weighted = prefix * w
        earlier = weighted.cumsum() - weighted
        value = _mix(prefix + earlier + _weights(3, self._layers)[:, None])
        self.cells[:, :count, 0] = prefix
        self.cells[:, :count, 1] = value
        sums = (value * x).cumsum(axis=1)
        self._totals[:, :count] = (sums * _weights(3, self._layers)[:, None]).cumsum(axis=0)
        self._sums = sums[:, -1].copy()
        self._prefix = int(prefix[-1])
        self._earlier = int(weighted.sum())
        past = (np.array(work.prompt, np.uint64) + np.uint64(1)) * _weights(4, self.cells.shape[1])[:count]
        self._past = int(past.sum())

    def _generate(self, work: Work) -> None:
        """The rest, a token at a time."""
        a = _weights(3, self._layers)
        position = len(work.prompt) - 1
        while True:
            history = history_of(self._past, work.generated + len(self.tokens), work.grammar) if work.looks_back else 0
            total = int(self._totals[-1, position])
            token = token_of(self._prefix, total, work.sampling, history)
            self.tokens.append(token)
            self.logprobs.append(logprobs_of(self._prefix, total, token, work.sampling))
            if token in work.stop_ids or len(self.tokens) == work.max_tokens:
                return
            position += 1
            b, w, x = (int(_weights(stream, self.cells.shape[1])[position]) for stream in (0, 1, 2))
            self._prefix = (self._prefix + (token + 1) * b) & MASK
            self._past = (self._past + (token + 1) * weight(4, position)) & MASK
            value = _mix(a + np.uint64((self._prefix + self._earlier) & MASK))
            self._earlier = (self._earlier + self._prefix * w) & MASK
            self.cells[:, position, 0] = self._prefix
            self.cells[:, position, 1] = value
            self._sums += value * np.uint64(x)
            self._totals[:, position] = (self._sums * a).cumsum()

    def hidden(self, last: LayerId, start: int, end: int) -> bytes:
        """Hidden states of the positions [start, end), after a stage whose layers end before `last`."""
        if last not in self._hidden:
            both = np.stack([self.cells[0, :, 0], self._totals[last - 1]], axis=1)
            self._hidden[last] = both.tobytes()
        return self._hidden[last][start * FAKE_CELL_BYTES : end * FAKE_CELL_BYTES]


@functools.lru_cache(maxsize=64)
def _weights(stream: int, count: int) -> U64:
    return np.array([weight(stream, index) for index in range(count)], np.uint64)


def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))
