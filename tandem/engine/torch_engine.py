"""The engine port in plain torch on the CPU: the layers [first, last) of a decoder, over a paged KV cache."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tandem.core.ids import LayerId
from tandem.core.plan import Plan
from tandem.engine.attention import attend, make_batch
from tandem.engine.decoder import decoder_layer, logits_of
from tandem.engine.masks import Masks
from tandem.engine.memory import Pool
from tandem.engine.rotary import tables
from tandem.engine.sampler import draw
from tandem.engine.shape import ModelShape
from tandem.engine.weights import StageWeights
from tandem.ports import NOTHING_SAMPLED, Sampled


class TorchEngine:
    """Fits `ports.Engine`. Hidden states are [tokens, hidden] in the weights' dtype; pages hold the same dtype."""

    def __init__(self, shape: ModelShape, weights: StageWeights, memory: Pool, *, page_size: int) -> None:
        self.memory = memory
        self._shape = shape
        self._weights = weights
        self._page_size = page_size
        self._dtype = weights.layers[0].attn_norm.dtype
        self.hidden_bytes = shape.hidden * self._dtype.itemsize
        region = memory.region
        self._first = region.first_layer
        if len(weights.layers) != region.last_layer - region.first_layer:
            raise ValueError(f"weights of {len(weights.layers)} layers do not fit the pages of {region}")
        pool = torch.frombuffer(memory.buffer, dtype=self._dtype)
        self._pool = pool.view(len(weights.layers), region.num_pages, 2, page_size, shape.kv_heads, shape.head_dim)
        self._masks = Masks(shape)
        self._cos, self._sin = tables(shape, self._pool)

    def compile(self, grammar: str) -> None:
        """See `ports.Engine.compile`. Every stage does what the last one will do, so rank 0 knows whether it can."""
        self._masks.compile(grammar)

    @torch.inference_mode()
    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """See `ports.Engine.run`. The returned memoryview is flat: tokens * hidden_bytes bytes."""
        x = self._final(plan, hidden, layer_ran)
        if self._weights.head is None:
            flat: memoryview = x.view(torch.uint8).reshape(-1).numpy().data
            return flat
        rows = [row for row in plan.rows if row.samples]
        if not rows:
            return NOTHING_SAMPLED
        allowed = {index: torch.from_numpy(self._masks.allowed(row)) for index, row in enumerate(rows) if row.grammar}
        return draw(logits_of(self._shape, self._weights.norm, self._weights.head, x), rows, allowed)

    @torch.inference_mode()
    def logits(self, plan: Plan, hidden: memoryview | None = None) -> Tensor:
        """Like `run` on the last stage, before sampling: [sampled rows, vocab] in the weights' dtype. For tests."""
        x = self._final(plan, hidden, lambda _: None)
        return logits_of(self._shape, self._weights.norm, self._weights.head, x)

    def _final(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> Tensor:
        """This stage's last hidden states; on the last stage only of the tokens that are sampled from."""
        batch = make_batch(plan.rows, self._page_size, self._shape.window)
        x = self._embed(plan) if hidden is None else self._receive(hidden)
        cos = self._cos.index_select(0, batch.positions)[:, None]
        sin = self._sin.index_select(0, batch.positions)[:, None]
        for index, weights in enumerate(self._weights.layers):
            x = decoder_layer(self._shape, weights, x, cos, sin, partial(attend, batch, self._pool[index]))
            layer_ran(LayerId(self._first + index))
        return x if self._weights.head is None else x.index_select(0, batch.sampled)

    def _embed(self, plan: Plan) -> Tensor:
        assert self._weights.embedding is not None, "only the first stage runs without hidden states"
        return F.embedding(torch.tensor([token for row in plan.rows for token in row.tokens]), self._weights.embedding)

    def _receive(self, hidden: memoryview) -> Tensor:
        """A copy, since the sender's buffer may be read-only and does not outlive the call."""
        x = torch.empty(hidden.nbytes // self.hidden_bytes, self._shape.hidden, dtype=self._dtype)
        x.view(torch.uint8).numpy().reshape(-1).data[:] = hidden.cast("B")
        return x
