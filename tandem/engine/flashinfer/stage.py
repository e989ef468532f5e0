"""The layers [first, last) of a decoder on one device, and what the first and the last stage have besides.

Nothing here depends on the values of a plan, only on tensors: so it can be captured in a graph.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tandem.engine.decoder import decoder_layer, logits_of
from tandem.engine.flashinfer.attention import Attention
from tandem.engine.rotary import tables
from tandem.engine.shape import ModelShape
from tandem.engine.weights import LayerWeights, StageWeights


class Stage:
    """Weights on a device, and the pool [layers, pages, 2, page_size, kv_heads, head_dim] that they fill."""

    def __init__(self, shape: ModelShape, weights: StageWeights, pool: Tensor) -> None:
        self.weights = _moved(weights, pool.device)
        self.pool = pool
        self.hidden = shape.hidden
        self.last = weights.head is not None
        self._shape = shape
        self._cos, self._sin = tables(shape, pool)

    def embed(self, tokens: Tensor) -> Tensor:
        """The hidden states that the first stage begins with."""
        assert self.weights.embedding is not None, "only the first stage runs without hidden states"
        return F.embedding(tokens, self.weights.embedding)

    def layers(
        self, x: Tensor, positions: Tensor, cells: Tensor, attention: Attention, ran: Callable[[int], None]
    ) -> Tensor:
        """Hidden states [tokens, hidden] after all layers; `ran` hears of each layer whose K and V have been queued."""
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        for index, weights in enumerate(self.weights.layers):
            attend = partial(_attend, self.pool[index], cells, attention)
            x = decoder_layer(self._shape, weights, x, cos, sin, attend)
            ran(index)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Of the last stage's hidden states, [rows, vocab]."""
        return logits_of(self._shape, self.weights.norm, self.weights.head, x)


def _attend(pool: Tensor, cells: Tensor, attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Fits `decoder.Attend`, with the layer's pool and where the tokens' K and V go."""
    _store(pool, cells, key, value)
    return attention.run(query.contiguous(), pool).reshape(len(query), -1)


def _store(pool: Tensor, cells: Tensor, key: Tensor, value: Tensor) -> None:
    """Into cells: page * page_size + offset."""
    page_size = pool.shape[2]
    page, offset = cells // page_size, cells % page_size
    pool[page, 0, offset] = key
    pool[page, 1, offset] = value


def _moved(weights: StageWeights, device: torch.device) -> StageWeights:
    """All of a stage's tensors on its device. Who has the one table of a tied model once, has it once there."""
    embedding = _there(weights.embedding, device)
    head = embedding if weights.head is weights.embedding else _there(weights.head, device)
    layers = tuple(moved(layer, device) for layer in weights.layers)
    return StageWeights(layers, embedding, _there(weights.norm, device), head)


def moved(layer: LayerWeights, device: torch.device) -> LayerWeights:
    """A layer on a device."""
    return LayerWeights(*(_there(tensor, device) for tensor in layer))  # type: ignore[arg-type]


def _there(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
