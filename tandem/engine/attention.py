"""Paged attention on the CPU: correct for any page table, any page size, and rows of all kinds in one plan.

A block of the pool is [2, page_size, kv_heads, head_dim]: the keys of a page, then its values. Everything that only
depends on the plan (`Batch`) is computed once and used by every layer. With a sliding window, pages that lie wholly
before it are not read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tandem.core.plan import Row
from tandem.core.requests import pages_for

MAX_GATHERED_TOKENS = 65_536
"""Padded tokens of one decode group: bounds the copy of K and V that a layer makes."""


class Single(NamedTuple):
    """Rows of one token, attended together.

    tokens [B]: their places among the plan's tokens. key_pages, value_pages [B * pages]: padded with the row's own
    first page. mask [B, 1, 1, pages * page_size], True where a token is that is seen; padding [n]: the flat cells where
    none is.
    """

    tokens: Tensor
    key_pages: Tensor
    value_pages: Tensor
    mask: Tensor
    padding: Tensor


class Chunk(NamedTuple):
    """A row of several tokens, [first, last) of the plan's. Without earlier context there are no pages to gather.

    `keys` are those of the pages from the first that is seen to the end. mask [tokens, keys]: True where the token may
    look.
    """

    first: int
    last: int
    keys: int
    key_pages: Tensor | None
    value_pages: Tensor | None
    mask: Tensor | None


class Batch(NamedTuple):
    """Where a plan's tokens lie: positions, key_cells, value_cells [tokens] int64; sampled [rows that sample] int64."""

    positions: Tensor
    key_cells: Tensor
    value_cells: Tensor
    sampled: Tensor
    singles: tuple[Single, ...]
    chunks: tuple[Chunk, ...]


def make_batch(rows: Sequence[Row], page_size: int, window: int = 0) -> Batch:
    """Lay out a plan's rows, each of at least one token. Raises IndexError when a page table is too short.

    `window` is in tokens, each token's own included; 0 is none.
    """
    positions: list[int] = []
    cells: list[int] = []
    sampled: list[int] = []
    singles: list[tuple[int, Row]] = []
    chunks: list[Chunk] = []
    for row in rows:
        at = len(positions)
        for position in range(row.start, row.end):
            page, offset = divmod(position, page_size)
            positions.append(position)
            cells.append(row.pages[page] * 2 * page_size + offset)
        if row.samples:
            sampled.append(len(positions) - 1)
        if len(row.tokens) == 1:
            singles.append((at, row))
        else:
            chunks.append(_chunk(row, at, page_size, window))
    key_cells = torch.tensor(cells)
    return Batch(
        positions=torch.tensor(positions),
        key_cells=key_cells,
        value_cells=key_cells + page_size,
        sampled=torch.tensor(sampled, dtype=torch.int64),
        singles=tuple(_single(group, page_size, window) for group in _groups(singles, page_size, window)),
        chunks=tuple(chunks),
    )


def attend(batch: Batch, pool: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Write this layer's new keys and values, then attend: returns [tokens, heads * head_dim].

    pool [num_pages, 2, page_size, kv_heads, head_dim]; query [tokens, heads, head_dim]; key, value
    [tokens, kv_heads, head_dim].
    """
    num_pages, _, page_size, kv_heads, head_dim = pool.shape
    cells = pool.view(num_pages * 2 * page_size, kv_heads, head_dim)
    cells.index_copy_(0, batch.key_cells, key)
    cells.index_copy_(0, batch.value_cells, value)
    halves = pool.view(num_pages * 2, page_size * kv_heads * head_dim)
    tokens = query.shape[0]
    out = torch.empty(tokens, query.shape[1] * head_dim, dtype=query.dtype)
    for single in batch.singles:
        out.index_copy_(0, single.tokens, _attend_single(single, halves, query, kv_heads))
    for chunk in batch.chunks:
        span = slice(chunk.first, chunk.last)
        out[span] = _attend_chunk(chunk, halves, query[span], key[span], value[span])
    return out


def _attend_single(single: Single, halves: Tensor, query: Tensor, kv_heads: int) -> Tensor:
    count, head_dim = len(single.tokens), query.shape[-1]

    def gather(pages: Tensor) -> Tensor:
        flat = halves.index_select(0, pages)
        if len(single.padding):
            # A weight of zero does not silence a NaN that a page's last owner left there.
            flat.view(-1, kv_heads * head_dim).index_fill_(0, single.padding, 0)
        return flat.view(count, -1, kv_heads, head_dim).transpose(1, 2)

    # The heads that share a key become query positions: one pass over K and V, and far faster than enable_gqa here.
    grouped = query.index_select(0, single.tokens).view(count, kv_heads, -1, head_dim)
    mask = single.mask if len(single.padding) else None
    attended = F.scaled_dot_product_attention(
        grouped, gather(single.key_pages), gather(single.value_pages), attn_mask=mask
    )
    return attended.reshape(count, -1)


def _attend_chunk(chunk: Chunk, halves: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    if chunk.key_pages is not None and chunk.value_pages is not None:
        key = halves.index_select(0, chunk.key_pages).view(-1, *key.shape[1:])[: chunk.keys]
        value = halves.index_select(0, chunk.value_pages).view(-1, *value.shape[1:])[: chunk.keys]
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1).reshape(len(query), -1)


def _seen_pages(row: Row, page_size: int, window: int) -> range:
    """The places in a row's table of the pages that any of its tokens looks at."""
    first = max(0, row.start - window + 1) // page_size if window else 0
    return range(first, pages_for(row.end, page_size))


def _chunk(row: Row, at: int, page_size: int, window: int) -> Chunk:
    count = len(row.tokens)
    last = at + count
    if row.start == 0 and (not window or row.end <= window):
        return Chunk(at, last, row.end, None, None, None)
    # A chunk from the start has all its keys at hand, whatever its window.
    seen = _seen_pages(row, page_size, window) if row.start else range(0)
    skipped = seen.start * page_size
    mask = torch.ones(count, row.end - skipped, dtype=torch.bool).tril(row.start - skipped)
    if window:
        mask = mask.triu(row.start - skipped - window + 1)
    if not row.start:
        return Chunk(at, last, row.end, None, None, mask)
    keys = torch.tensor(row.pages[seen.start : seen.stop]) * 2
    return Chunk(at, last, row.end - skipped, keys, keys + 1, mask)


def _groups(singles: list[tuple[int, Row]], page_size: int, window: int) -> list[list[tuple[int, Row]]]:
    """Rows that see similarly much together, so that padding at most doubles what is gathered."""

    def width(single: tuple[int, Row]) -> int:
        return len(_seen_pages(single[1], page_size, window))

    groups: list[list[tuple[int, Row]]] = []
    for single in sorted(singles, key=width):
        pages = width(single)
        if groups:
            shortest = width(groups[-1][0])
            fits = pages <= 2 * shortest + 1 and (len(groups[-1]) + 1) * pages * page_size <= MAX_GATHERED_TOKENS
            if fits:
                groups[-1].append(single)
                continue
        groups.append([single])
    return groups


def _single(group: list[tuple[int, Row]], page_size: int, window: int) -> Single:
    seen = [_seen_pages(row, page_size, window) for _, row in group]
    width = max(len(pages) for pages in seen)
    tables = []
    for (_, row), pages in zip(group, seen, strict=True):
        used = row.pages[pages.start : pages.stop]
        tables.append(used + used[:1] * (width - len(used)))
    keys = torch.tensor(tables).view(-1) * 2
    skipped = torch.tensor([pages.start * page_size for pages in seen])[:, None]
    ends = torch.tensor([row.end for _, row in group])[:, None]
    positions = torch.arange(width * page_size)[None] + skipped
    mask = positions < ends
    if window:
        mask &= positions >= ends - window
    return Single(
        tokens=torch.tensor([at for at, _ in group]),
        key_pages=keys,
        value_pages=keys + 1,
        mask=mask[:, None, None],
        padding=(~mask).view(-1).nonzero()[:, 0],
    )
