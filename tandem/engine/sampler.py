"""Draws tokens from logits, a batch at once. A token depends on (logits, sampling, position) and nothing else."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.core.requests import Sampling
from tandem.engine.splitmix import GAMMA, MASK, mix


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that only depends on its arguments: splitmix64 used as a counter."""
    return (mix((mix(seed & MASK) + position * GAMMA) & MASK) >> 11) / (1 << 53)


def sample(logits: Tensor, sampling: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token id per row of `logits` [rows, vocab], floating point of any width.

    `positions[i]` is the position of the token to draw. Temperature 0 takes the largest logit, the first of equals.
    Otherwise the softmax, cut to the smallest set of likeliest tokens that holds `top_p`, is inverted at
    `uniform(seed, position)` in the order of token ids, in float64.
    """
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, each in enumerate(sampling) if each.temperature > 0]
    if drawn:
        chosen = [sampling[row] for row in drawn]
        at = [uniform(sampling[row].seed, positions[row]) for row in drawn]
        for row, token in zip(drawn, _draw(logits[drawn], chosen, at), strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: Tensor, sampling: Sequence[Sampling], at: Sequence[float]) -> list[int]:
    temperature = torch.tensor([each.temperature for each in sampling], dtype=torch.float64)[:, None]
    wide = logits.double()
    # Subtracting first keeps a tiny temperature from overflowing to inf - inf.
    weights = ((wide - wide.amax(dim=-1, keepdim=True)) / temperature).exp()
    top_p = torch.tensor([each.top_p for each in sampling], dtype=torch.float64)[:, None]
    if bool((top_p < 1).any()):
        weights = _nucleus(weights, top_p)
    sums = weights.cumsum(dim=-1)
    targets = torch.tensor(at, dtype=torch.float64)[:, None] * sums[:, -1:]
    found = torch.searchsorted(sums, targets, right=True)[:, 0]
    # Rounding can put the target on the last sum: stay at the last token that has a weight.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
    tokens: list[int] = torch.minimum(found, last).tolist()
    return tokens


def _nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero the weights outside the smallest set of likeliest tokens that holds `top_p` of the whole."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    sums = ordered.cumsum(dim=-1)
    keep = (sums - ordered < top_p * sums[:, -1:]) | (top_p >= 1)
    keep[:, 0] = True
    return torch.zeros_like(weights).scatter_(-1, order, ordered * keep)
