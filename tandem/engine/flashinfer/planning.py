"""What FlashInfer is told of a plan: where the pages of each row are, and where each token goes. Plain CPU tensors.

FlashInfer's kernels take rows as ragged lists: row b has the pages `kv_indices[kv_indptr[b] : kv_indptr[b + 1]]`, whose
last one holds `last_page_len[b]` tokens, and the queries [qo_indptr[b], qo_indptr[b + 1]) of the plan's tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.core.plan import Row
from tandem.core.requests import pages_for

GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Rows for which a decode graph is captured; a plan takes the next larger one, and one with more rows none."""


class Ragged(NamedTuple):
    """A plan's rows. Indices are int32, as the kernels want them; all else is int64, to index tensors with."""

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    cells: Tensor  # [tokens]: page * page_size + offset, where the token's K and V go
    qo_indptr: Tensor  # [rows + 1] int32
    kv_indptr: Tensor  # [rows + 1] int32
    kv_indices: Tensor  # [pages of all rows] int32
    last_page_len: Tensor  # [rows] int32, from 1 to the page size
    sampled: Tensor  # [rows that sample]: their last tokens

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.last_page_len)


def lay_out(rows: Sequence[Row], page_size: int) -> Ragged:
    """Where a plan's rows lie, each of at least one token. Raises IndexError when a page table is too short."""
    tokens: list[int] = []
    positions: list[int] = []
    cells: list[int] = []
    sampled: list[int] = []
    qo_indptr, kv_indptr = [0], [0]
    kv_indices: list[int] = []
    last_page_len: list[int] = []
    for row in rows:
        tokens += row.tokens
        positions += range(row.start, row.end)
        cells += (row.pages[at // page_size] * page_size + at % page_size for at in range(row.start, row.end))
        used = pages_for(row.end, page_size)
        kv_indices += row.pages[:used]
        qo_indptr.append(len(tokens))
        kv_indptr.append(len(kv_indices))
        last_page_len.append(row.end - (used - 1) * page_size)
        if row.samples:
            sampled.append(len(tokens) - 1)
    return Ragged(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        cells=torch.tensor(cells),
        qo_indptr=torch.tensor(qo_indptr, dtype=torch.int32),
        kv_indptr=torch.tensor(kv_indptr, dtype=torch.int32),
        kv_indices=torch.tensor(kv_indices, dtype=torch.int32),
        last_page_len=torch.tensor(last_page_len, dtype=torch.int32),
        sampled=torch.tensor(sampled, dtype=torch.int64),
    )


def is_decode(rows: Sequence[Row]) -> bool:
    """Whether every row is one token that is sampled from: what graphs are captured for."""
    return all(len(row.tokens) == 1 and row.samples for row in rows)


def graph_rows(rows: int) -> int | None:
    """The rows of the graph that so many rows take; None: there is none so large."""
    return next((size for size in GRAPH_ROWS if size >= rows), None)


def padded(rows: Sequence[Row], size: int) -> list[Row]:
    """`size` rows. What is added repeats the first one: it writes the same K and V to the same cell, and needs no
    page of its own.
    """
    return [*rows, *([rows[0]] * (size - len(rows)))]
