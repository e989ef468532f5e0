"""The few tokens of each row that can matter, taken out of a large vocabulary without sorting it."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCKS = 1024
"""Parts of a row, of which each gives its largest value: as many tokens can be bounded."""


class Shortlist(NamedTuple):
    """`values` [rows, most] and their `ids`, in the order of ids; behind a row's own, `values` are the padding."""

    values: Tensor
    ids: Tensor


def shortlist(values: Tensor, least: Tensor, padding: float) -> Shortlist:
    """Those of `values` [rows, vocab] that are at least the row's `least` [rows]."""
    flat = torch.from_numpy(np.flatnonzero((values >= least[:, None]).numpy()))
    vocab = values.shape[-1]
    row_of = flat // vocab
    counts = torch.bincount(row_of, minlength=len(values))
    place = torch.arange(len(flat)) - (counts.cumsum(0) - counts)[row_of]
    found = torch.full((len(values), max(1, int(counts.max()))), padding, dtype=values.dtype)
    ids = torch.zeros(found.shape, dtype=torch.int64)
    found[row_of, place] = values.reshape(-1)[flat]
    ids[row_of, place] = flat - row_of * vocab
    return Shortlist(found, ids)


def bound(values: Tensor, counts: Tensor) -> Tensor:
    """For each row of `values` [rows, vocab] something that its `counts[row]`th largest is not below, [rows].

    The count-th largest of the blocks' largest values: each of as many blocks has one that is no smaller. Where there
    are too few blocks for that, it is the row's smallest value.
    """
    rows, vocab = values.shape
    width = vocab // BLOCKS
    if width < 2:
        return values.amin(dim=-1)
    # Strided blocks, so that the maximum runs along rows; what is over at the end is in no block.
    largest = np.sort(values[:, : width * BLOCKS].numpy().reshape(rows, width, BLOCKS).max(axis=1), axis=1)
    place = (BLOCKS - counts.clamp(max=BLOCKS))[:, None]
    found = torch.from_numpy(largest).gather(1, place)[:, 0]
    return torch.where(counts <= BLOCKS, found, values.amin(dim=-1))
