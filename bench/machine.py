"""A modelled accelerator: how long a stage of Llama-3-70B takes on an H100, from public figures and named assumptions.

Public: the model's shape (80 layers, hidden size 8192, 855.7 M parameters a layer); NVIDIA's data sheet of the H100 SXM
(989 dense bf16 TFLOP/s, 3.35 TB/s of HBM3, 450 GB/s of NVLink each way); 400 Gbit/s of network per GPU.
Assumed: 60% of the peak for matrix products and for attention; 60 us per layer and forward that no computing fills
(launches and tails of about ten kernels), and 300 us per forward; 20 us for a collective of any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.chunking import CostModel, pairs

LAYERS = 80
HIDDEN = 8192
BYTES = 2
LAYER_PARAMETERS = 855.7e6
PEAK_FLOPS = 989e12
MEMORY_BYTES_S = 3.35e12
EFFICIENCY = 0.6
LAYER_FIXED_US = 60.0
FORWARD_FIXED_US = 300.0
COLLECTIVE_US = 20.0
LINKS_BYTES_S = {"NVLink": 450e9, "400 Gbit/s": 50e9}

Chunk = tuple[int, int]
"""Tokens, and the position of the first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one GPU computes: `layers` layers, or an equal `part` of each of them."""

    layers: int
    part: float = 1.0
    fixed: float = 1.0  # scales what no computing fills, to see what depends on it

    @property
    def cost(self) -> CostModel:
        """Of a forward that is bound by computing, in microseconds."""
        flops_us = EFFICIENCY * PEAK_FLOPS / 1e6
        base = self.fixed * (FORWARD_FIXED_US + LAYER_FIXED_US * self.layers)
        token = 2 * LAYER_PARAMETERS * self.layers * self.part / flops_us
        return CostModel(base, token, 4 * HIDDEN * self.layers * self.part / flops_us)

    def forward_us(self, chunks: Sequence[Chunk]) -> float:
        """One forward. It takes at least as long as to read the weights once."""
        cost = self.cost
        weights_us = BYTES * LAYER_PARAMETERS * self.layers * self.part / MEMORY_BYTES_S * 1e6
        linear_us = max(weights_us, cost.per_token * sum(tokens for tokens, _ in chunks))
        return cost.base + linear_us + cost.per_pair * sum(pairs(*chunk) for chunk in chunks)


def hidden_bytes(tokens: int) -> int:
    """Hidden states of so many tokens: what crosses a stage boundary once."""
    return tokens * HIDDEN * BYTES


def all_reduce_bytes(tokens: int, ranks: int) -> float:
    """What each GPU sends in one ring all-reduce of the hidden states: 2 (P - 1) / P of them."""
    return 2 * (ranks - 1) / ranks * hidden_bytes(tokens)


def tensor_parallel_bytes(tokens: int, ranks: int) -> float:
    """What each GPU sends for a prompt: two all-reduces per layer, after attention and after the MLP."""
    return 2 * LAYERS * all_reduce_bytes(tokens, ranks)


def tensor_parallel_us(chunks: Sequence[Chunk], ranks: int, link: str) -> float:
    """A prompt on `ranks` GPUs that share every layer; all-reduces do not overlap with computing."""
    share = Share(LAYERS, 1 / ranks)
    compute_us = sum(share.forward_us([chunk]) for chunk in chunks)
    sent_us = tensor_parallel_bytes(sum(tokens for tokens, _ in chunks), ranks) / LINKS_BYTES_S[link] * 1e6
    return compute_us + sent_us + 2 * LAYERS * COLLECTIVE_US * len(chunks)
