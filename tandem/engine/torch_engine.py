"""The engine port in plain torch on the CPU: the layers [first, last) of a Llama, over a paged KV cache."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from tandem.core.ids import LayerId
from tandem.core.plan import Plan
from tandem.engine.attention import Batch, attend, make_batch
from tandem.engine.memory import Pool
from tandem.engine.model import ModelShape
from tandem.engine.sampler import sample
from tandem.engine.weights import LayerWeights, StageWeights
from tandem.ports import Sampled


class TorchEngine:
    """Fits `ports.Engine`. Hidden states are [tokens, hidden] in the weights' dtype; pages hold the same dtype."""

    def __init__(self, shape: ModelShape, weights: StageWeights, memory: Pool, *, page_size: int) -> None:
        self.memory = memory
        self._shape = shape
        self._weights = weights
        self._page_size = page_size
        self._dtype = weights.layers[0].qkv.dtype
        self.hidden_bytes = shape.hidden * self._dtype.itemsize
        region = memory.region
        self._first = region.first_layer
        if len(weights.layers) != region.last_layer - region.first_layer:
            raise ValueError(f"weights of {len(weights.layers)} layers do not fit the pages of {region}")
        pool = torch.frombuffer(memory.buffer, dtype=self._dtype)
        self._pool = pool.view(len(weights.layers), region.num_pages, 2, page_size, shape.kv_heads, shape.head_dim)
        self._cos, self._sin = _rope_tables(shape, self._dtype)

    @torch.inference_mode()
    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """See `ports.Engine.run`. The returned memoryview is flat: tokens * hidden_bytes bytes."""
        x = self._final(plan, hidden, layer_ran)
        if self._weights.head is None:
            flat: memoryview = x.view(torch.uint8).reshape(-1).numpy().data
            return flat
        rows = [row for row in plan.rows if row.samples]
        if not rows:
            return ()
        tokens = sample(self._logits(x), [row.sampling for row in rows], [row.end for row in rows])
        return tuple((token,) for token in tokens)

    @torch.inference_mode()
    def logits(self, plan: Plan, hidden: memoryview | None = None) -> Tensor:
        """Like `run` on the last stage, before sampling: [sampled rows, vocab] in the weights' dtype. For tests."""
        return self._logits(self._final(plan, hidden, lambda _: None))

    def _final(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> Tensor:
        """This stage's last hidden states; on the last stage only of the tokens that are sampled from."""
        batch = make_batch(plan.rows, self._page_size)
        x = self._embed(plan) if hidden is None else self._receive(hidden)
        cos = self._cos.index_select(0, batch.positions)[:, None]
        sin = self._sin.index_select(0, batch.positions)[:, None]
        for index, weights in enumerate(self._weights.layers):
            x = self._layer(weights, x, self._pool[index], batch, cos, sin)
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

    def _layer(self, weights: LayerWeights, x: Tensor, pool: Tensor, batch: Batch, cos: Tensor, sin: Tensor) -> Tensor:
        shape = self._shape
        heads, kv_heads = shape.heads, shape.kv_heads
        normed = F.rms_norm(x, (shape.hidden,), weights.attn_norm, shape.eps)
        qkv = F.linear(normed, weights.qkv).view(-1, heads + 2 * kv_heads, shape.head_dim)
        turned = _rope(qkv[:, : heads + kv_heads], cos, sin)
        attended = attend(batch, pool, turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :])
        x = x + F.linear(attended, weights.attn_out)
        normed = F.rms_norm(x, (shape.hidden,), weights.ffn_norm, shape.eps)
        gate, up = F.linear(normed, weights.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, weights.down)

    def _logits(self, x: Tensor) -> Tensor:
        norm, head = self._weights.norm, self._weights.head
        assert norm is not None, "only the last stage has logits"
        assert head is not None, "only the last stage has logits"
        return F.linear(F.rms_norm(x, (self._shape.hidden,), norm, self._shape.eps), head)


def _rope_tables(shape: ModelShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin for every position of the context, [context, head_dim]: both halves alike."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    angles = torch.outer(torch.arange(shape.context).float(), 1.0 / shape.rope_theta**steps)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) over halves, as Hugging Face does it. x [tokens, heads, head_dim]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
