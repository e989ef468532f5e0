"""Chunks of a prompt that all cost the same: the cost of a forward, the table of chunk sizes, and how both are learned.

Attention makes later tokens dearer, and a pipeline is as slow as its slowest chunk. Only the integer table ever enters
a frame; everything else here is floating point and stays on rank 0.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

FLOOR = 64
"""Tokens of the shortest chunk, and what longer ones are a multiple of: a GPU's tiles are full then."""

LEAST_FIRST = 256
"""Tokens of the shortest first chunk: below, reading weights takes longer than computing, which no cost here says."""


class CostModel(NamedTuple):
    """The time of one forward, in any unit. A chunk of n tokens at position s attends to n * (s + n / 2) pairs."""

    base: float  # of a forward, whatever is in it
    per_token: float
    per_pair: float

    def time(self, tokens: float, start: float) -> float:
        """What a chunk costs."""
        return self.base + self.per_token * tokens + self.per_pair * pairs(tokens, start)

    def tokens(self, time: float, start: float) -> float:
        """The chunk at `start` that costs `time`: `time` solved for its tokens."""
        spare = max(0.0, time - self.base)
        if not spare:
            return 0.0
        linear = self.per_token + self.per_pair * start
        return 2 * spare / (linear + root(linear * linear + 2 * self.per_pair * spare))


def root(value: float) -> float:
    """The square root: `math` is not among what the core may import."""
    return float(value**0.5)


def pairs(tokens: float, start: float) -> float:
    """Pairs of a token and one that it attends to, in a chunk."""
    return tokens * (start + tokens / 2)


def equal_time_table(
    cost: CostModel, first_chunk: int, context: int, bucket: int, floor: int = FLOOR
) -> tuple[int, ...]:
    """Tokens of a chunk that begins in position bucket i, so that each costs what `first_chunk` tokens at 0 cost.

    Never rising, multiples of `floor` after the first, never below it, never above `first_chunk`.
    """
    floor = min(floor, first_chunk)
    time = cost.time(first_chunk, 0)
    table = [first_chunk]
    for start in range(bucket, context, bucket):
        equal = int(cost.tokens(time, start)) // floor * floor
        table.append(max(floor, min(equal, table[-1])))
    return tuple(table)


def best_first_chunk(cost: CostModel, prompt: int, stages: int, most: int, least: int = LEAST_FIRST) -> int:
    """The first of equal-time chunks with which `prompt` tokens pass `stages` equal stages soonest, from least to most.

    K chunks take (work + K * base) + (stages - 1) * (work / K + base): the makespan sum(c) + (P - 1) * max(c) of a flow
    shop whose machines are alike. It is least where a chunk works for the root of work * base / (stages - 1).
    """
    if stages == 1:
        return most
    work = cost.time(prompt, 0) - cost.base
    best = int(cost.tokens(cost.base + root(work * cost.base / (stages - 1)), 0))
    return max(min(least, most), min(most, best // FLOOR * FLOOR))


ENOUGH = 32
"""Forwards before anything is said about them."""
AGE = 2048
"""Forwards after which half of the weight goes to newer ones."""
NEWS = 0.1
"""The relative change of a table's entry that is worth a new table."""
SINGULAR = 1e-4
"""A pivot of the normalised normal equations below this: what was seen does not tell two costs apart."""
UNITS = (1.0, 1024.0, 1048576.0)
"""Of the three features, so that they are of like size."""

Matrix = list[list[float]]


class Fit:
    """Learns what forwards of one stage cost, by least squares of the relative error, and when chunks should change.

    Owned by rank 0. One slow forward among many, such as the first, has hardly any weight: its error is at most one.
    """

    def __init__(self, first_chunk: int, context: int, bucket: int, stages: int) -> None:
        self._most = first_chunk
        self._context = context
        self._bucket = bucket
        self._stages = stages
        self._seen = 0
        self._square: Matrix = [[0.0] * 3 for _ in range(3)]
        self._target = [0.0] * 3
        self._table: tuple[int, ...] = ()

    def observe(self, chunks: Iterable[tuple[int, int]], duration: float) -> tuple[int, ...] | None:
        """One forward of chunks (tokens, start) took so long: a new table, if it is time for one."""
        if duration <= 0:
            return None
        self._add(list(chunks), duration)
        if self._seen < ENOUGH or self._seen % ENOUGH:
            return None
        cost = self.cost
        if cost is None:
            return None
        first = best_first_chunk(cost, self._context, self._stages, self._most)
        table = equal_time_table(cost, first, self._context, self._bucket)
        if not differs(table, self._table):
            return None
        self._table = table
        return table

    def _add(self, chunks: Sequence[tuple[int, int]], duration: float) -> None:
        if self._seen and self._seen % AGE == 0:
            self._square = [[value / 2 for value in line] for line in self._square]
            self._target = [value / 2 for value in self._target]
        self._seen += 1
        tokens = sum(count for count, _ in chunks)
        attended = sum(pairs(count, start) for count, start in chunks)
        features = [value / unit / duration for value, unit in zip((1.0, tokens, attended), UNITS, strict=True)]
        for line, feature in zip(self._square, features, strict=True):
            for column, other in enumerate(features):
                line[column] += feature * other
        self._target = [sum_ + feature for sum_, feature in zip(self._target, features, strict=True)]

    @property
    def cost(self) -> CostModel | None:
        """What forwards cost as far as is known; None while too little was seen to tell tokens from pairs.

        Where all chunks were of one size, base and tokens cannot be told apart: then all of it counts as tokens.
        """
        for known in ((0, 1, 2), (1, 2)):
            found = self._solve(known)
            if found is not None and min(found) >= 0 and found[-1] > 0:
                full = [0.0] * (3 - len(found)) + found
                return CostModel(*(value / unit for value, unit in zip(full, UNITS, strict=True)))
        return None

    def _solve(self, known: Sequence[int]) -> list[float] | None:
        """The normal equations of these features, each scaled to a diagonal of ones; None if they are singular."""
        if not all(self._square[i][i] for i in known):
            return None
        scale = [1 / root(self._square[i][i]) for i in known]
        rows = [
            [self._square[i][j] * s * t for j, t in zip(known, scale, strict=True)] + [self._target[i] * s]
            for i, s in zip(known, scale, strict=True)
        ]
        solved = eliminate(rows)
        return None if solved is None else [value * s for value, s in zip(solved, scale, strict=True)]


def differs(table: Sequence[int], other: Sequence[int]) -> bool:
    """Whether any entry has changed by more than a tenth, and by more than the rounding."""
    if len(table) != len(other):
        return True
    return any(abs(new - old) > max(NEWS * old, FLOOR) for new, old in zip(table, other, strict=True))


def eliminate(rows: Matrix) -> list[float] | None:
    """Solve a positive definite system, each row with its right-hand side last (Gauss-Jordan); None if singular."""
    for index, pivot_row in enumerate(rows):
        pivot = pivot_row[index]
        if pivot < SINGULAR:
            return None
        pivot_row[:] = [value / pivot for value in pivot_row]
        for other, row in enumerate(rows):
            if other != index:
                factor = row[index]
                row[:] = [value - factor * above for value, above in zip(row, pivot_row, strict=True)]
    return [row[-1] for row in rows]
