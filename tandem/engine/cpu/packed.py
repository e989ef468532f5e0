"""A stage's weights as the native code reads them: matrices packed into one piece of memory, vectors in float32."""

import contextlib
import mmap
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.cpu.native import PANEL, Layer, Native
from tandem.engine.shape import ModelShape
from tandem.engine.weights import Ends, LayerWeights

ALIGNMENT = 64


class PackedWeights:
    """Addresses of everything; they are valid as long as this lives. Filled by `add` for each layer, then `end`."""

    def __init__(self, native: Native, shape: ModelShape, layers: int, *, last: bool) -> None:
        """Room for so many layers, and for the head if they are the last ones."""
        self.native = native
        self._shape = shape
        self._kept: list[Tensor] = []
        self.padded_vocab = -(-shape.vocab // (2 * PANEL)) * 2 * PANEL
        self._arena = _Arena(layers * _layer_items(shape) + (self.padded_vocab * shape.hidden if last else 0))
        self.layers = (Layer * layers)()
        self._added = 0
        self.embedding: int | None = None
        self.norm: int | None = None
        self.head: int | None = None

    def add(self, weights: LayerWeights) -> None:
        """The next layer, whose matrices are not needed afterwards."""
        self.layers[self._added] = self._layer(weights)
        self._added += 1

    def end(self, ends: Ends) -> None:
        """All layers are here. Only the embedding is kept as it is: tokens are looked up in it."""
        assert self._added == len(self.layers), f"{self._added} layers of {len(self.layers)} were packed"
        self.embedding = self._keep(ends.embedding, torch.bfloat16)
        self.norm = self._keep(ends.norm, torch.float32)
        if ends.head is not None:
            self.head = self._pack(ends.head, range(self.padded_vocab // PANEL))

    def _layer(self, weights: LayerWeights) -> Layer:
        shape = self._shape
        return Layer(
            attn_norm=self._keep(weights.attn_norm, torch.float32),
            qkv=self._pack(weights.qkv, _halves_together(shape)),
            qkv_bias=self._keep(weights.qkv_bias, torch.float32),
            q_norm=self._keep(weights.q_norm, torch.float32),
            k_norm=self._keep(weights.k_norm, torch.float32),
            attn_out=self._pack(weights.attn_out, range(shape.hidden // PANEL)),
            ffn_norm=self._keep(weights.ffn_norm, torch.float32),
            gate_up=self._pack(weights.gate_up, _gate_beside_up(shape)),
            down=self._pack(weights.down, range(shape.hidden // PANEL)),
        )

    def _keep(self, tensor: Tensor | None, dtype: torch.dtype) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.to(dtype).contiguous())
        return self._kept[-1].data_ptr()

    def _pack(self, weight: Tensor, panels: Sequence[int]) -> int:
        outputs, inputs = weight.shape
        source = weight.to(torch.bfloat16).contiguous()
        order = np.array(panels, np.int32)
        place = self._arena.take(len(order) * PANEL * inputs)
        self.native.pack(source.data_ptr(), place, outputs, inputs, order.ctypes.data, len(order))
        return place


class _Arena:
    """Memory in large pages where the system has them: a forward reads all of it, every time."""

    def __init__(self, items: int) -> None:
        self._map = mmap.mmap(-1, max(1, items * 2) + ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._next = 0

    def take(self, items: int) -> int:
        place = self._next
        self._next += items * 2  # a multiple of ALIGNMENT: panels have 16 outputs and inputs are even
        assert self._next <= len(self._bytes), "more is packed than was counted"
        return int(self._bytes.ctypes.data) + place


def _layer_items(shape: ModelShape) -> int:
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return shape.hidden * (heads + 3 * shape.intermediate)


def _halves_together(shape: ModelShape) -> list[int]:
    """Panels of qkv: beside each of the first half of a head lies the one that rotary positions turn it with."""
    per_head = shape.head_dim // PANEL
    half = per_head // 2
    heads = shape.heads + 2 * shape.kv_heads
    return [head * per_head + at + other for head in range(heads) for at in range(half) for other in (0, half)]


def _gate_beside_up(shape: ModelShape) -> list[int]:
    count = shape.intermediate // PANEL
    return [panel + other for panel in range(count) for other in (0, count)]
