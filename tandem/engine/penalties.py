"""What changes a row's logits before a token is drawn: penalties for what has been said, and biases."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tandem.core.plan import Row

LARGEST = 1e300
"""What a logit can become, up or down: a penalty of next to nothing would make it infinite, and then all are alike."""


def change(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Change `logits` [rows, vocab], float64, in place, by the sampling of each row; returns them.

    In this order: the repetition penalty divides what is positive and multiplies what is negative, of all tokens of
    `past` (Keskar et al. 2019); for each token of the answer its number of times there, times the frequency penalty,
    and the presence penalty once are subtracted; biases are added. Biases of ids outside the vocabulary count nothing.
    """
    repeating = [index for index, row in enumerate(rows) if row.sampling.repetition_penalty != 1]
    if repeating:
        where, _ = _said(logits, repeating, [rows[index].past for index in repeating])
        penalty = _of_rows([row.sampling.repetition_penalty for row in rows], where)
        old = logits[where]
        logits[where] = torch.where(old > 0, old / penalty, old * penalty).clamp(-LARGEST, LARGEST)
    counting = [index for index, row in enumerate(rows) if _counts(row)]
    if counting:
        where, times = _said(logits, counting, [rows[index].past[-rows[index].generated :] for index in counting])
        presence = _of_rows([row.sampling.presence_penalty for row in rows], where)
        frequency = _of_rows([row.sampling.frequency_penalty for row in rows], where)
        logits[where] = logits[where] - frequency * times - presence
    _add_biases(logits, rows)
    return logits


def _counts(row: Row) -> bool:
    return row.generated > 0 and bool(row.sampling.presence_penalty or row.sampling.frequency_penalty)


def _said(
    logits: Tensor, rows: Sequence[int], texts: Sequence[tuple[int, ...]]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Where in `logits` the tokens of the texts of some rows are, each once, and how often they were said."""
    vocab = logits.shape[-1]
    row_of = np.repeat(np.array(rows), [len(text) for text in texts])
    tokens = np.concatenate([np.array(text, np.int64) for text in texts])
    cells, times = np.unique(row_of * vocab + tokens, return_counts=True)
    flat = torch.from_numpy(cells)
    return (flat // vocab, flat % vocab), torch.from_numpy(times).double()


def _of_rows(values: Sequence[float], where: tuple[Tensor, Tensor]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[where[0]]


def _add_biases(logits: Tensor, rows: Sequence[Row]) -> None:
    vocab = logits.shape[-1]
    biases = [
        (index, token, bias)
        for index, row in enumerate(rows)
        for token, bias in row.sampling.logit_bias
        if token < vocab
    ]
    if biases:
        row_of, tokens, values = zip(*biases, strict=True)
        where = torch.tensor(row_of), torch.tensor(tokens)
        logits.index_put_(where, torch.tensor(values, dtype=torch.float64), accumulate=True)
