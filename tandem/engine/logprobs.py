"""Log-probabilities of drawn tokens and of the likeliest ones, from the model's own logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.core.inputs import TokenLogprobs
from tandem.core.requests import NO_LOGPROBS, Logprobs, Sampling
from tandem.engine.shortlist import Shortlist, bound, shortlist

_SLACK = 1e-9
"""By how much less likely a token may be than another and still be equal to it, after rounding."""


def logprobs(logits: Tensor, sampling: Sequence[Sampling], tokens: Sequence[int]) -> TokenLogprobs:
    """For each row of `logits` [rows, vocab] and the token drawn there; empty if no row asks for any."""
    asked = [row for row, each in enumerate(sampling) if each.logprobs != NO_LOGPROBS]
    if not asked:
        return ()
    counts = torch.tensor([min(sampling[row].logprobs, logits.shape[-1]) for row in asked])
    chosen = (logits if len(asked) == len(logits) else logits[asked]).to(torch.float64, copy=True)
    shifted = chosen.sub_(chosen.amax(dim=-1, keepdim=True))
    drawn = shifted.gather(1, torch.tensor([tokens[row] for row in asked])[:, None])
    likeliest = _likeliest(shifted, counts) if int(counts.max()) else None
    # The last of running sums, as torch splits a plain sum otherwise when there is but one row. `shifted` ends here.
    whole = shifted.exp_().cumsum(dim=-1)[:, -1:].log()
    found: list[Logprobs | None] = [None] * len(sampling)
    values, ids = (
        _ordered(likeliest, whole, counts) if likeliest is not None else ([[]] * len(asked), [[]] * len(asked))
    )
    for row, own, value, each in zip(asked, (drawn - whole)[:, 0].tolist(), values, ids, strict=True):
        found[row] = Logprobs(own, tuple(zip(each, value, strict=True)))
    return tuple(found)


def _likeliest(shifted: Tensor, counts: Tensor) -> Shortlist:
    """The tokens among which each row's likeliest are, those that rounding makes equal to one of them included."""
    return shortlist(shifted, bound(shifted, counts.clamp(min=1)) - _SLACK, -torch.inf)


def _ordered(few: Shortlist, whole: Tensor, counts: Tensor) -> tuple[list[list[float]], list[list[int]]]:
    """The log-probabilities and ids of each row's `counts` likeliest; of equals the smallest ids come first."""
    logs, order = (few.values - whole).sort(dim=-1, descending=True, stable=True)
    ids = few.ids.gather(1, order)
    most = int(counts.max())
    rows = zip(logs[:, :most].tolist(), ids[:, :most].tolist(), counts.tolist(), strict=True)
    kept = [(values[:count], each[:count]) for values, each, count in rows]
    return [values for values, _ in kept], [each for _, each in kept]
