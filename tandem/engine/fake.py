"""An engine without a model: real KV bytes in real pages, and tokens that come out wrong if any of them is wrong.

All arithmetic is modulo 2**64. For a prompt t_0, t_1, ... with per-position odd weights B, W, X and per-layer odd
weights A:

    prefix[p]   = prefix[p-1] + (t_p + 1) * B[p]                     the rolling prefix hash, prefix[-1] = SEED
    sum[l, p]   = sum over j < p of prefix_in_cell(l, j) * W[j]    read through the page table
    value[l, p] = mix(prefix[p] + sum[l, p] + A[l])
    cell(l, p)  = [prefix[p], value[l, p]]                         written to the page pool
    hidden[p]   = [prefix[p], sum over l of A[l] * (sum over j <= p of value_in_cell(l, j) * X[j])]
    token       = a hash of hidden[p], and of all tokens up to p if its sampling looks back or its answer has a grammar

Every cell of every layer that lies before a token is read, at its position: a stale, missing or misplaced one changes
the sums, and a wrong sum during a prefill chunk is written into that chunk's values, as it would be by a real model.
Sums do not depend on chunks, stages, page numbers or neighbours, so tokens do not either.
"""

import functools
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.core.ids import LayerId, PageId, RequestId, Room
from tandem.core.plan import Plan, Row
from tandem.core.requests import NO_LOGPROBS, Logprobs, Sampling, Work, ending, pages_for
from tandem.engine.grammar import check
from tandem.engine.memory import Pool
from tandem.engine.model import FAKE_CELL_BYTES, FAKE_CONTEXT, FAKE_EOS
from tandem.engine.splitmix import GAMMA, MASK, MIX_1, MIX_2, mix
from tandem.ports import Sampled

U64 = NDArray[np.uint64]
Ints = NDArray[np.int64]

GREEDY = Sampling()
SEED = GAMMA
EOS_EVERY = 64
"""One token in so many is the end of the sequence."""
FIRST_LETTER, LETTERS = 32, 95
"""The others are printable ASCII."""

_S30, _S27, _S31 = (np.uint64(shift) for shift in (30, 27, 31))


def weight(stream: int, index: int) -> int:
    """A fixed odd number per (stream, index). Streams: 0 is B, 1 is W, 2 is X, 3 is A, 4 is H."""
    return mix((stream << 32) + index + SEED) | 1


def token_of(prefix: int, total: int, sampling: Sampling, history: int = 0) -> int:
    """The next token: printable ASCII, or now and then the end of the sequence."""
    salt = mix(sampling.seed & MASK) if sampling.temperature > 0 else 0
    z = mix((prefix + mix(total) + salt + history) & MASK)
    return FAKE_EOS if z % EOS_EVERY == 0 else FIRST_LETTER + (z >> 8) % LETTERS


def history_of(tokens: int, generated: int, grammar: str) -> int:
    """What a row that looks back adds to the hash: `tokens` is the sum over j of (t_j + 1) * H[j], H being stream 4."""
    return mix((tokens + generated * GAMMA + zlib.crc32(grammar.encode())) & MASK)


def logprobs_of(prefix: int, total: int, token: int, sampling: Sampling) -> Logprobs | None:
    """Its log-probabilities, if they are asked for: it is the likeliest one, letters after it come next."""
    if sampling.logprobs == NO_LOGPROBS:
        return None
    drawn = -(1 + mix((prefix + mix(total) + token) & MASK) % 2048) / 256
    others = (FIRST_LETTER + (token - FIRST_LETTER + step) % LETTERS for step in range(1, sampling.logprobs))
    likeliest = (token, *others)[: sampling.logprobs]
    return Logprobs(drawn, tuple((each, drawn - step / 8) for step, each in enumerate(likeliest)))


class FakeEngine:
    """Fits `ports.Engine` for the layers of `memory`. Blocks are [page_size, 2] uint64, hidden states [tokens, 2].

    A row must not read what another row of the same plan writes. `last` says whether this is the last stage.
    """

    hidden_bytes = FAKE_CELL_BYTES

    def __init__(
        self,
        memory: Pool,
        *,
        page_size: int,
        last: bool,
        context: int = FAKE_CONTEXT,
        where: "Callable[[tuple[Row, ...], int, Tables], Where] | None" = None,
    ) -> None:
        """`where`: another way to come by a `Where`, for who runs many ranks of one group."""
        region = memory.region
        if region.block_bytes != (expected := page_size * FAKE_CELL_BYTES):
            raise ValueError(f"a fake page of {page_size} tokens has {expected} bytes, not {region.block_bytes}")
        self.memory = memory
        self._page_size = page_size
        self._first = region.first_layer == 0
        self._last = last
        self._layers = tuple(LayerId(layer) for layer in range(region.first_layer, region.last_layer))
        flat = np.frombuffer(memory.buffer, np.uint64)
        count = len(self._layers)
        self._pages = flat.reshape(count, region.num_pages, page_size * 2)
        self._cells = flat.reshape(count, region.num_pages * page_size, 2)
        self._a = np.array([[weight(3, layer)] for layer in self._layers], np.uint64)
        self._tables = _tables(page_size, context)
        self._where = where or Where

    def compile(self, grammar: str) -> None:
        """See `ports.Engine.compile`. Its tokens do not follow it: they only depend on it."""
        check(grammar)

    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """See `ports.Engine.run`. The returned memoryview is flat: tokens * hidden_bytes bytes."""
        rows = plan.rows
        where = self._where(rows, self._page_size, self._tables)
        sums = self._read(where)
        if self._first:
            prefix = self._prefix(rows, where)
            incoming: U64 | None = None
        else:
            assert hidden is not None
            both = np.frombuffer(hidden, np.uint64).reshape(where.tokens, 2)
            prefix, incoming = both[:, 0], both[:, 1]
        total = self._write(where, prefix, sums)
        if incoming is not None:
            total += incoming
        for layer in self._layers:
            layer_ran(layer)
        if self._last:
            return self._sample(rows, where, prefix, total)
        out = np.empty((where.tokens, 2), np.uint64)
        out[:, 0] = prefix
        out[:, 1] = total
        return out.reshape(-1).view(np.uint8).data

    def _read(self, where: "Where") -> U64:
        """Weighted sums over the cells before each row: [layers, rows, 2], of prefixes and of values."""
        if where.read_weights is None:
            return np.zeros((len(self._layers), len(where.starts), 2), np.uint64)
        products = self._pages.take(where.pages, axis=1)
        products *= where.read_weights
        per_row = _segments(products, where.first_page)
        sums: U64 = per_row.reshape(len(self._layers), -1, self._page_size, 2).sum(axis=2)
        return sums

    def _prefix(self, rows: Sequence[Row], where: "Where") -> U64:
        """The rolling prefix hash of every token, [tokens], continued from the cell before each row."""
        steps = np.array([token + 1 for row in rows for token in row.tokens], np.uint64)
        steps *= self._tables.b.take(where.positions)
        before = self._cells[0, where.cell_before, 0]
        before[where.fresh] = SEED
        if where.single:
            return before + steps
        return before[where.row_of] + where.running(steps)

    def _write(self, where: "Where", prefix: U64, sums: U64) -> U64:
        """Write the new tokens' cells; return each token's weighted sum of all values up to its own, [tokens]."""
        value = self._a + prefix
        value += sums[..., 0] if where.single else self._earlier(where, prefix) + sums[:, where.row_of, 0]
        value = _mix(value)
        cells = self._cells
        cells[:, where.cells, 0] = prefix
        cells[:, where.cells, 1] = value
        value *= where.token_weights[:, 1]
        value = value + sums[..., 1] if where.single else where.running(value) + sums[:, where.row_of, 1]
        value *= self._a
        total: U64 = value.sum(axis=0)
        return total

    def _earlier(self, where: "Where", prefix: U64) -> U64:
        """Weighted sums over the prefixes of the earlier tokens of the same row, [tokens]."""
        weighted = prefix * where.token_weights[:, 0]
        return where.running(weighted) - weighted

    def _sample(self, rows: Sequence[Row], where: "Where", prefix: U64, total: U64) -> Sampled:
        at, tokens, logprobs = -1, [], []
        for row in rows:
            at += len(row.tokens)
            if not row.samples:
                continue
            seen, summed = int(prefix[at]), int(total[at])
            token = token_of(seen, summed, row.sampling, self._history(row))
            tokens.append((token,))
            logprobs.append(logprobs_of(seen, summed, token, row.sampling))
        return Sampled(tuple(tokens), tuple(logprobs) if any(logprobs) else ())

    def _history(self, row: Row) -> int:
        if not (row.grammar or row.sampling.looks_back):
            return 0
        steps = (np.array(row.past, np.uint64) + np.uint64(1)) * self._tables.h[: len(row.past)]
        return history_of(int(steps.sum()), row.generated, row.grammar)


class Tables:
    """Position weights: `b`, `h` [context]; `wx` [pages, page_size * 2]: W and X in turn, as cells lie in a page."""

    def __init__(self, page_size: int, context: int) -> None:
        pages = pages_for(context, page_size)
        streams = [_weights(stream, pages * page_size) for stream in (0, 1, 2, 4)]
        self.b, self.h = streams[0], streams[3]
        self.cells = np.stack(streams[1:3], axis=1)
        self.wx = self.cells.reshape(pages, page_size * 2)
        self.at = np.repeat(np.arange(pages * page_size), 2).reshape(pages, page_size * 2)


@functools.lru_cache(maxsize=16)
def _tables(page_size: int, context: int) -> Tables:
    return Tables(page_size, context)


class Where:
    """Where a plan's tokens lie, computed once per plan.

    pages [N]: all rows' page tables one after another; first_page [rows]: where each begins in it.
    cells, positions, row_of [tokens]: each new token's cell in the pool, position in its text, and row.
    cell_before [rows]: the cell of the token before each row. read_weights [N, page_size * 2]: 0 from `start` on, None
    if nothing is read.
    """

    def __init__(self, rows: Sequence[Row], page_size: int, tables: Tables) -> None:
        counts = [len(row.tokens) for row in rows]
        page_counts = [len(row.pages) for row in rows]
        assert min(counts) > 0, rows
        assert all(len(row.pages) * page_size >= row.end for row in rows), rows
        self.tokens = sum(counts)
        self.single = self.tokens == len(rows)
        self.pages = np.array([page for row in rows for page in row.pages], np.int64)
        starts = [row.start for row in rows]
        self.starts = np.array(starts, np.int64)
        self.fresh = [index for index, start in enumerate(starts) if start == 0]
        self.first_page = _firsts(page_counts)
        self.cell_before = [_cell(row.pages, row.start - 1, page_size) if row.start else 0 for row in rows]
        if self.single:
            self.positions = self.starts
            self.cells = np.array([_cell(row.pages, row.start, page_size) for row in rows], np.int64)
        else:
            self.row_of = np.arange(len(rows)).repeat(counts)
            self._first_token = _firsts(counts)
            self.positions = np.arange(self.tokens) + (self.starts - self._first_token)[self.row_of]
            self.cells = self._cells(page_size)
        self.token_weights = tables.cells.take(self.positions, axis=0)
        fresh = len(self.fresh) == len(rows)
        self.read_weights = None if fresh else self._read_weights(starts, page_counts, tables)

    def _read_weights(self, starts: list[int], page_counts: list[int], tables: Tables) -> U64:
        if len(starts) == 1:
            weights = tables.wx[: page_counts[0]].copy()
            weights.reshape(-1)[2 * starts[0] :] = 0
            return weights
        weights = np.concatenate([tables.wx[:count] for count in page_counts])
        at = np.concatenate([tables.at[:count] for count in page_counts])
        weights *= at < self.starts.repeat(page_counts)[:, None]
        return weights

    def running(self, values: U64) -> U64:
        """Inclusive running sums along the last axis, each row for itself."""
        sums: U64 = values.cumsum(axis=-1)
        firsts = self._first_token
        before = sums[..., firsts] - values[..., firsts]
        sums -= before[..., self.row_of]
        return sums

    def _cells(self, page_size: int) -> Ints:
        page, offset = np.divmod(self.positions, page_size)
        cells: Ints = self.pages[self.first_page[self.row_of] + page] * page_size + offset
        return cells


def _cell(pages: Sequence[PageId], position: int, page_size: int) -> int:
    return pages[position // page_size] * page_size + position % page_size


def _segments(values: U64, firsts: Ints) -> U64:
    """Sums of consecutive runs along axis 1."""
    if len(firsts) == 1:
        return np.add.reduce(values, axis=1, keepdims=True)
    return np.add.reduceat(values, firsts, axis=1)


def _firsts(counts: Sequence[int]) -> Ints:
    """Where each of several consecutive runs begins."""
    firsts = np.zeros(len(counts), np.int64)
    np.cumsum(counts[:-1], out=firsts[1:])
    return firsts


def _mix(x: U64) -> U64:
    """`mix`, elementwise and in place."""
    x ^= x >> _S30
    x *= np.uint64(MIX_1)
    x ^= x >> _S27
    x *= np.uint64(MIX_2)
    x ^= x >> _S31
    return x


def _weights(stream: int, count: int) -> U64:
    """`weight(stream, 0 .. count - 1)`."""
    return _mix(np.arange(count, dtype=np.uint64) + np.uint64((stream << 32) + SEED & MASK)) | np.uint64(1)


def reference_tokens(
    prompt: Sequence[int],
    max_tokens: int,
    stop_ids: Sequence[int] = (),
    *,
    layers: int,
    sampling: Sampling = GREEDY,
) -> list[int]:
    """What a fake model of `layers` layers must generate, in plain Python without pages: the oracle of tests.

    The last token is the first one in `stop_ids`, or the `max_tokens`-th.
    """
    work = Work(Room(RequestId(0), 1), tuple(prompt), max_tokens, tuple(stop_ids), sampling, None)
    return [token for token, _ in reference(work, layers=layers)]


def reference(work: Work, *, layers: int) -> list[tuple[int, Logprobs | None]]:
    """The same for a whole request, with log-probabilities if it asks for them."""
    text = _Reference(layers, work)
    for each in work.prompt:
        text.append(each)
    answer = [text.following()]
    while ending(work, len(answer), answer[-1][0]) is None:
        text.append(answer[-1][0])
        answer.append(text.following())
    return answer


class _Reference:
    """The formulas at the top of this file, one token at a time."""

    def __init__(self, layers: int, work: Work) -> None:
        self.prefix, self.earlier, self.total, self.history, self.position = SEED, 0, 0, 0, 0
        self.sums = [0] * layers
        self.work = work

    def append(self, token: int) -> None:
        self.prefix = (self.prefix + (token + 1) * weight(0, self.position)) & MASK
        self.history = (self.history + (token + 1) * weight(4, self.position)) & MASK
        self.total = 0
        for layer, before in enumerate(self.sums):
            value = mix((self.prefix + self.earlier + weight(3, layer)) & MASK)
            self.sums[layer] = (before + value * weight(2, self.position)) & MASK
            self.total = (self.total + weight(3, layer) * self.sums[layer]) & MASK
        self.earlier = (self.earlier + self.prefix * weight(1, self.position)) & MASK
        self.position += 1

    def following(self) -> tuple[int, Logprobs | None]:
        work, generated = self.work, self.work.generated + self.position - len(self.work.prompt)
        history = history_of(self.history, generated, work.grammar) if work.looks_back else 0
        token = token_of(self.prefix, self.total, work.sampling, history)
        return token, logprobs_of(self.prefix, self.total, token, work.sampling)
