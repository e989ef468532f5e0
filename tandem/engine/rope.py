"""The frequencies of rotary position embedding (Su et al. 2021), and how they are scaled for long contexts."""

import math

import numpy as np
from numpy.typing import NDArray

from tandem.engine.shape import ModelShape, RopeScaling

Frequencies = NDArray[np.float64]
"""In radians per token, [head_dim / 2]."""

KINDS = ("linear", "llama3", "yarn")
"""Scalings that a model's configuration can name."""


def frequencies(shape: ModelShape) -> tuple[Frequencies, float]:
    """What turns each pair of a head from token to token, and what cos and sin are multiplied by.

    Engines round the frequencies to float32 and multiply by positions in float32, as transformers does: at position
    100,000 anything else is another model.
    """
    plain = shape.rope_theta ** -(np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim)
    scaling = shape.rope_scaling
    if scaling is None:
        return plain, 1.0
    match scaling.kind:
        case "linear":
            return plain / scaling.factor, 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, scaling, shape), scaling.attention_factor
        case "divisors":
            return plain / np.array(scaling.divisors, np.float64), 1.0
    raise ValueError(f"rope scaling of the unknown kind {scaling.kind!r}")


def _llama3(plain: Frequencies, scaling: RopeScaling) -> Frequencies:
    """Llama 3.1's: what turns fast in the original context stays, what turns slowly is divided, in between both."""
    turns = scaling.original_context * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clip(0, 1)
    mixed: Frequencies = kept * plain + (1 - kept) * plain / scaling.factor
    return mixed


def _yarn(plain: Frequencies, scaling: RopeScaling, shape: ModelShape) -> Frequencies:
    """YaRN's (Peng et al. 2023): the same idea, with a ramp over the index of the frequency."""

    def index_of(turns: float) -> float:
        """The index, not whole, of the frequency with so many turns in the original context."""
        at = math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(shape.rope_theta)
        return shape.head_dim * at / 2

    first, last = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, shape.head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    divided = ((np.arange(len(plain)) - first) / (last - first)).clip(0, 1)
    mixed: Frequencies = divided * plain / scaling.factor + (1 - divided) * plain
    return mixed


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """What a configuration without attention_factor means."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)
