"""Draws tokens from logits, a batch at once.

A token depends on (logits, sampling, position) and, where the sampling looks back, on the tokens before it; never on
its neighbours in the batch. Rows that ask for nothing special are not touched by what others ask for. Nothing is
drawn from logits that are no numbers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tandem.core.plan import Row
from tandem.core.requests import Sampling
from tandem.engine.logprobs import logprobs
from tandem.engine.penalties import change
from tandem.engine.shortlist import Shortlist, bound, shortlist
from tandem.engine.splitmix import GAMMA, MASK, mix
from tandem.ports import Sampled

ANYTHING: Mapping[int, Tensor] = {}
_SLACK = 1 - 1e-9
"""For what sums lose by rounding."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that only depends on its arguments: splitmix64 used as a counter."""
    return (mix((mix(seed & MASK) + position * GAMMA) & MASK) >> 11) / (1 << 53)


def draw(logits: Tensor, rows: Sequence[Row], allowed: Mapping[int, Tensor] = ANYTHING) -> Sampled:
    """One token for each row of `logits` [rows, vocab], and the log-probabilities of those that ask for them.

    `rows[i]` is the plan's row for logits[i]. `allowed[i]` [vocab], bool: the tokens that its grammar lets follow. No
    token for a row with a logit of NaN or plus infinity, or where all are minus infinity.
    """
    changed = [index for index, row in enumerate(rows) if index in allowed or row.sampling.changes_logits]
    if changed:
        tokens: list[int | None] = [None] * len(rows)
        others = [index for index in range(len(rows)) if index not in changed]
        _put(tokens, others, pick(logits, others), rows)
        own = pick(logits, changed).to(torch.float64, copy=True)
        whole = own.amax(dim=-1, keepdim=True).isfinite()
        own = change(own, [rows[index] for index in changed])
        own.masked_fill_(~whole, torch.nan)  # a grammar's mask would hide it
        for place, index in enumerate(changed):
            if index in allowed and whole[place]:
                own[place].masked_fill_(~allowed[index], -torch.inf)
        _put(tokens, changed, own, rows)
    else:
        tokens = _sample(logits, rows)
    drawn = {index: token for index, token in enumerate(tokens) if token is not None}
    ways = [rows[index].sampling for index in drawn]
    each = tuple(() if token is None else (token,) for token in tokens)
    return Sampled(each, logprobs(pick(logits, list(drawn)), ways, list(drawn.values())))


def _put(tokens: list[int | None], where: Sequence[int], logits: Tensor, rows: Sequence[Row]) -> None:
    """`logits` are those of the rows `where` alone."""
    if where:
        drawn = _sample(logits, [rows[index] for index in where])
        for index, token in zip(where, drawn, strict=True):
            tokens[index] = token


def _sample(logits: Tensor, rows: Sequence[Row]) -> list[int | None]:
    return sample(logits, [row.sampling for row in rows], [row.end for row in rows])


def sample(logits: Tensor, sampling: Sequence[Sampling], positions: Sequence[int]) -> list[int | None]:
    """One token id per row of `logits` [rows, vocab], floating point of any width, penalties and bias being in them.
    None for a row whose largest logit is no finite number.

    `positions[i]` is the position of the token to draw. Temperature 0 takes the largest logit, the first of equals.
    Otherwise the softmax, cut to the `top_k` likeliest tokens (the first of equals), of these to the smallest set that
    holds `top_p`, and to those that are at least `min_p` times as likely as the likeliest, is inverted at
    `uniform(seed, position)` in the order of token ids, in float64.
    """
    tokens: list[int | None] = [None] * len(sampling)
    greedy = [row for row, each in enumerate(sampling) if each.temperature == 0]
    drawn = [row for row, each in enumerate(sampling) if each.temperature > 0]
    if greedy:
        for row, token in zip(greedy, _largest_ids(pick(logits, greedy)), strict=True):
            tokens[row] = token
    if drawn:
        at = [uniform(sampling[row].seed, positions[row]) for row in drawn]
        for row, token in zip(drawn, _draw(pick(logits, drawn), [sampling[row] for row in drawn], at), strict=True):
            tokens[row] = token
    return tokens


def _largest_ids(logits: Tensor) -> list[int | None]:
    """numpy's argmax takes the first of equals as torch's does, and a tenth of the time. A NaN is larger than all."""
    exact = (logits if logits.dtype == torch.float64 else logits.float()).numpy()
    tokens = exact.argmax(axis=-1)
    finite = np.isfinite(np.take_along_axis(exact, tokens[:, None], axis=-1)[:, 0])
    return [token if each else None for token, each in zip(tokens.tolist(), finite.tolist(), strict=True)]


def _draw(logits: Tensor, sampling: Sequence[Sampling], at: Sequence[float]) -> list[int | None]:
    weights = logits.to(torch.float64, copy=True)
    largest = weights.amax(dim=-1, keepdim=True)
    finite = largest.isfinite()
    if not bool(finite.all()):
        weights.masked_fill_(~finite, 0.0)  # any numbers: what is drawn from them is not told
        largest.masked_fill_(~finite, 0.0)
    # Subtracting first keeps a tiny temperature from overflowing to inf - inf. The largest weight of a row is 1.
    weights.sub_(largest).div_(_column([each.temperature for each in sampling])).exp_()
    tokens = _drawn(weights, sampling, at)
    return [token if each else None for token, each in zip(tokens, finite[:, 0].tolist(), strict=True)]


def _drawn(weights: Tensor, sampling: Sequence[Sampling], at: Sequence[float]) -> list[int]:
    vocab = weights.shape[-1]
    tokens = [0] * len(sampling)
    cut = [row for row, each in enumerate(sampling) if 0 < each.top_k < vocab or each.top_p < 1 or each.min_p > 0]
    whole = [row for row in range(len(sampling)) if row not in cut]
    if whole:
        found = _invert(pick(weights, whole), [at[row] for row in whole])
        for row, token in zip(whole, found.tolist(), strict=True):
            tokens[row] = token
    if cut:
        few = _cut(pick(weights, cut), [sampling[row] for row in cut])
        found = few.ids.gather(1, _invert(few.values, [at[row] for row in cut])[:, None])[:, 0]
        for row, token in zip(cut, found.tolist(), strict=True):
            tokens[row] = token
    return tokens


def _invert(weights: Tensor, at: Sequence[float]) -> Tensor:
    """Where each row's running sum of weights passes the share `at` of the whole, [rows]."""
    sums = weights.cumsum(dim=-1)
    found = torch.searchsorted(sums, _column(at) * sums[:, -1:], right=True)[:, 0]
    over = (found == weights.shape[-1]).nonzero()[:, 0]
    if len(over):
        # Rounding can put the target on the last sum: stay at the last token that has a weight.
        behind = (weights[over] > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
        found[over] = weights.shape[-1] - 1 - behind
    return found


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def pick(rows: Tensor, where: Sequence[int]) -> Tensor:
    """Some rows; all of them are not copied."""
    return rows if len(where) == len(rows) else rows[list(where)]


def _cut(weights: Tensor, sampling: Sequence[Sampling]) -> Shortlist:
    """The tokens that are left in, with weights above 0; each row by its own rules, of which it has one at least.

    Each rule keeps so many of the likeliest tokens, so all is decided among tokens that are likely enough for one.
    """
    vocab = weights.shape[-1]
    counts = torch.tensor([each.top_k if 0 < each.top_k < vocab else vocab for each in sampling])
    counted = counts < vocab
    top_p = _column([each.top_p for each in sampling])
    min_p = _column([each.min_p for each in sampling])
    needed = bool(((top_p[:, 0] < 1) & ~counted).any())
    wholes = weights.cumsum(dim=-1)[:, -1:] if needed else torch.ones_like(top_p)
    few = shortlist(weights, _least(weights, counts, top_p, min_p, wholes), 0.0)
    kept = few.values
    # Rows are as long as the shortlist; what is behind their own tokens has no weight.
    ordered = torch.from_numpy(-np.sort(-kept.numpy(), axis=-1))
    within = kept.shape[-1]
    if bool((counted & (counts < within)).any()):
        kept = _likeliest(kept, ordered, torch.where(counted, counts, within).clamp(max=within)[:, None])
        ordered = torch.where(torch.arange(within) < counts[:, None], ordered, 0)
    sums = ordered.cumsum(dim=-1)
    wholes = torch.where(counted[:, None], sums[:, -1:], wholes)
    held = (sums - ordered < top_p * wholes).sum(dim=-1, keepdim=True).clamp(min=1)
    kept = torch.where(top_p < 1, _likeliest(kept, ordered, held), kept)
    return Shortlist(kept * (kept >= min_p), few.ids)


def _least(weights: Tensor, counts: Tensor, top_p: Tensor, min_p: Tensor, wholes: Tensor) -> Tensor:
    """For each row a weight that all tokens that can be left in have at least, [rows]."""
    vocab = weights.shape[-1]
    # All tokens below this share hold less than the nucleus may leave out.
    least = torch.where(top_p < 1, (1 - top_p) * wholes / vocab * _SLACK, 0).maximum(min_p)[:, 0]
    counted = counts < vocab
    if bool(counted.any()):
        # The whole of a nucleus is that of the counted, so all of these are needed.
        least = torch.where(counted, bound(weights, counts), least)
    return least


def _likeliest(weights: Tensor, ordered: Tensor, count: Tensor) -> Tensor:
    """Zero all but the `count` [rows, 1] largest, of equals those of the smallest ids. `ordered` is descending."""
    least = ordered.gather(-1, count - 1)
    larger, equal = weights > least, weights == least
    room = count - larger.sum(dim=-1, keepdim=True)
    return weights * (larger | (equal & (equal.cumsum(dim=-1) <= room)))
