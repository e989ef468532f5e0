"""What every engine in torch computes alike: a decoder layer around its attention, and the logits behind all layers."""

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tandem.engine.linear import linear
from tandem.engine.rotary import turned
from tandem.engine.shape import ModelShape
from tandem.engine.weights import LayerWeights

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Puts keys and values into the cache and attends. Query [tokens, heads, head_dim], key and value [tokens, kv_heads,
head_dim], rope being done; returns [tokens, heads * head_dim].
"""


def decoder_layer(
    shape: ModelShape, weights: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend
) -> Tensor:
    """One layer's output for x [tokens, hidden]; cos and sin [tokens, 1, head_dim] are of the tokens' positions."""
    heads, kv_heads = shape.heads, shape.kv_heads
    normed = F.rms_norm(x, (shape.hidden,), weights.attn_norm, shape.eps)
    qkv = linear(normed, weights.qkv, weights.qkv_bias).view(-1, heads + 2 * kv_heads, shape.head_dim)
    query, key, value = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    if weights.q_norm is not None:
        query = F.rms_norm(query, (shape.head_dim,), weights.q_norm, shape.eps)
    if weights.k_norm is not None:
        key = F.rms_norm(key, (shape.head_dim,), weights.k_norm, shape.eps)
    attended = attend(turned(query, cos, sin), turned(key, cos, sin), value)
    x = x + linear(attended, weights.attn_out)
    normed = F.rms_norm(x, (shape.hidden,), weights.ffn_norm, shape.eps)
    gate, up = linear(normed, weights.gate_up).chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, weights.down)


def logits_of(shape: ModelShape, norm: Tensor | None, head: Tensor | None, x: Tensor) -> Tensor:
    """[rows, vocab] of the last stage's hidden states."""
    assert norm is not None, "only the last stage has logits"
    assert head is not None, "only the last stage has logits"
    return linear(F.rms_norm(x, (shape.hidden,), norm, shape.eps), head)
