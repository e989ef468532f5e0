"""Rope as config.json describes it: one key since transformers 5, two in earlier ones."""

from typing import Any

from tandem.core.errors import ConfigError
from tandem.engine.rope import KINDS, yarn_attention_factor
from tandem.engine.shape import RopeScaling

UNSCALED = ("default", "dynamic")
"""Dynamic scaling begins beyond max_position_embeddings, and no text goes there."""
DEFAULT_THETA = 10_000.0


def config_rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None, int]:
    """Theta, the scaling, and the context in tokens. Raises ConfigError for a scaling that is not computed.

    The context is max_position_embeddings; with yarn, which Qwen's models are given without changing that, it is at
    least `factor` times the original one.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    context = int(config["max_position_embeddings"])
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA)
    if any(isinstance(value, dict) for value in rope.values()):
        raise ConfigError("rope_parameters differ between kinds of layers: supported is one rope for all")
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        raise ConfigError(f"partial_rotary_factor is {rope['partial_rotary_factor']!r}: supported is 1.0")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in UNSCALED:
        return theta, None, context
    if kind not in KINDS:
        raise ConfigError(f"rope scaling {kind!r} is not supported: it can be {', '.join((*UNSCALED, *KINDS))}")
    original = int(
        config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or context
    )
    if kind == "linear":
        return theta, RopeScaling(kind=kind, factor=_positive(rope, "factor")), context
    if kind == "llama3":
        return theta, _llama3(rope, original), context
    scaling = _yarn(rope, original, context)
    return theta, scaling, max(context, int(scaling.factor * original))


def _llama3(rope: dict[str, Any], original: int) -> RopeScaling:
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if low >= high:
        raise ConfigError(f"low_freq_factor is {low}: it must be less than high_freq_factor, {high}")
    return RopeScaling(
        kind="llama3",
        factor=_positive(rope, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=original,
    )


def _yarn(rope: dict[str, Any], original: int, context: int) -> RopeScaling:
    factor = context / original if rope.get("factor") is None else _positive(rope, "factor")
    attention = rope.get("attention_factor")
    if attention is None:
        attention = yarn_attention_factor(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=float(attention),
    )


def _positive(rope: dict[str, Any], key: str) -> float:
    value = rope.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"rope scaling's {key} is {value!r}: it must be a number above 0")
    return float(value)
