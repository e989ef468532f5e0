"""The words for what a model looks like: its dimensions, its rope scaling, its architecture."""

import msgspec

from tandem.core.errors import ConfigError

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures that the engine computes."""

FAKE = "fake"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rope's frequencies are changed for long contexts: the formulas are in `tandem.engine.rope`.

    `kind` is linear, llama3, yarn or divisors. linear divides all frequencies by `factor`; llama3 and yarn divide the
    slow ones, as told from `original_context` tokens; divisors has one number for each frequency. cos and sin are
    multiplied by `attention_factor`. Fields that a kind does not use have their defaults.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0  # of llama3
    high_freq_factor: float = 1.0  # of llama3
    original_context: int = 0  # of llama3 and yarn, in tokens
    beta_fast: float = 32.0  # of yarn
    beta_slow: float = 1.0  # of yarn
    truncate: bool = True  # of yarn
    attention_factor: float = 1.0  # of yarn
    divisors: tuple[float, ...] = ()


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's dimensions. `path` is the GGUF file or HF directory, empty for a fake model.

    `weights_id` names the weights (hex): files' sizes and a hash of their headers and of some samples.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    eps: float
    tied: bool  # the lm_head is the embedding
    eos_ids: tuple[int, ...]
    path: str
    weights_id: str
    qkv_bias: bool = False  # q, k and v have biases
    qk_norm: bool = False  # q and k pass an RMSNorm over head_dim before rope
    window: int = 0  # a token at position p sees p - window + 1 to p; 0: all before it
    rope_scaling: RopeScaling | None = None

    @property
    def is_fake(self) -> bool:
        """Whether `tandem.engine.fake` computes it."""
        return self.architecture == FAKE


def checked(shape: ModelShape) -> ModelShape:
    """The same shape. Raises ConfigError when its dimensions do not fit each other."""
    if shape.heads < 1 or shape.kv_heads < 1 or shape.heads % shape.kv_heads:
        raise ConfigError(f"{shape.heads} heads cannot share {shape.kv_heads} heads of keys and values")
    if shape.head_dim < 2 or shape.head_dim % 2:
        raise ConfigError(f"head_dim is {shape.head_dim}: rope needs an even number")
    if shape.layers < 1 or shape.context < 1 or shape.vocab < 1:
        raise ConfigError(f"{shape.layers} layers, {shape.context} tokens of context, {shape.vocab} tokens: none is 0")
    return shape
