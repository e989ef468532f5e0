"""Small random weights for the CPU engine, its stages in this process, and texts that are computed piece by piece."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, pages_for
from tandem.engine.cpu.build import Isa, native
from tandem.engine.cpu.cores import Place
from tandem.engine.cpu.engine import CpuEngine
from tandem.engine.cpu.packed import PackedWeights
from tandem.engine.memory import PlainMemory
from tandem.engine.model import block_bytes
from tandem.engine.shape import ModelShape
from tandem.engine.torch_engine import TorchEngine
from tandem.engine.weights import Ends, LayerWeights, StageWeights

LAYERS, VOCAB, CONTEXT = 3, 101, 512


def random_shape(head_dim: int = 64, group: int = 3, kv_heads: int = 2, **changes: Any) -> ModelShape:
    given: dict[str, Any] = {
        "name": "random",
        "architecture": "llama",
        "layers": LAYERS,
        "hidden": 96,
        "intermediate": 80,
        "heads": group * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab": VOCAB,
        "context": CONTEXT,
        "rope_theta": 3000.0,
        "eps": 1e-5,
        "tied": False,
        "eos_ids": (7,),
        "path": "",
        "weights_id": "",
    }
    return ModelShape(**given | changes)


def random_weights(shape: ModelShape, seed: int = 5) -> StageWeights:
    """All layers in bfloat16: embedding and head differ, whatever `tied` says."""
    dice = torch.Generator().manual_seed(seed)

    def draw(*size: int, scale: float = 1.0, around: float = 0.0) -> Tensor:
        return (torch.randn(size, generator=dice) * scale + around).bfloat16()

    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    wide, hidden, inner = shape.heads * shape.head_dim, shape.hidden, shape.intermediate
    norms = {"scale": 0.3, "around": 1.0}
    layers = tuple(
        LayerWeights(
            attn_norm=draw(hidden, **norms),
            qkv=draw(heads, hidden, scale=1.5 * hidden**-0.5),
            attn_out=draw(hidden, wide, scale=wide**-0.5),
            ffn_norm=draw(hidden, **norms),
            gate_up=draw(2 * inner, hidden, scale=hidden**-0.5),
            down=draw(hidden, inner, scale=inner**-0.5),
            qkv_bias=draw(heads, scale=0.5) if shape.qkv_bias else None,
            q_norm=draw(shape.head_dim, **norms) if shape.qk_norm else None,
            k_norm=draw(shape.head_dim, **norms) if shape.qk_norm else None,
        )
        for _ in range(shape.layers)
    )
    table = (shape.vocab, hidden)
    return StageWeights(
        layers=layers, embedding=draw(*table), norm=draw(hidden, **norms), head=draw(*table, scale=hidden**-0.5)
    )


def cut(weights: StageWeights, first: int, last: int) -> StageWeights:
    """The layers [first, last), with the ends that belong to them."""
    ends = last == len(weights.layers)
    return StageWeights(
        layers=weights.layers[first:last],
        embedding=weights.embedding if first == 0 else None,
        norm=weights.norm if ends else None,
        head=weights.head if ends else None,
    )


def in_float32(weights: StageWeights) -> StageWeights:
    def wider(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.float()

    layers = tuple(LayerWeights(*map(wider, layer)) for layer in weights.layers)  # type: ignore[arg-type]
    return StageWeights(layers, *map(wider, weights[1:]))  # type: ignore[arg-type]


def torch_engine(shape: ModelShape, weights: StageWeights, num_pages: int = 64) -> TorchEngine:
    """All layers, in the weights' dtype."""
    dtype = str(weights.layers[0].qkv.dtype).removeprefix("torch.")
    memory = PlainMemory((LayerId(0), LayerId(shape.layers)), num_pages, block_bytes(shape, dtype, 16))
    return TorchEngine(shape, weights, memory, page_size=16)


def packed(shape: ModelShape, weights: StageWeights, isa: Isa) -> PackedWeights:
    """For the native code of one build."""
    layers, *ends = weights
    found = PackedWeights(native(isa), shape, len(layers), last=weights.head is not None)
    for layer in layers:
        found.add(layer)
    found.end(Ends(*ends))
    return found


class Stages:
    """The CPU engine, cut into stages. Pages begin with NaN in them, as a failed transfer may leave them."""

    def __init__(
        self,
        shape: ModelShape,
        weights: StageWeights,
        isa: Isa,
        *,
        cuts: Sequence[int] = (),
        page_size: int = 16,
        num_pages: int = 64,
        threads: int = 1,
        place: Place | None = None,
    ) -> None:
        self.page_size = page_size
        self.engines = []
        for first, last in pairwise((0, *cuts, shape.layers)):
            layers = LayerId(first), LayerId(last)
            memory = PlainMemory(layers, num_pages, block_bytes(shape, "bfloat16", page_size))
            memory.buffer[:] = b"\xff" * len(memory.buffer)
            given = cut(weights, first, last)
            weights_here = packed(shape, given, isa)
            engine = CpuEngine(shape, weights_here, memory, page_size=page_size, threads=threads, place=place)
            self.engines.append(engine)

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """[rows that sample, vocab]."""
        plan = plan_of(rows)
        passed = None
        for engine in self.engines[:-1]:
            given = engine.run(plan, passed, lambda _: None)
            assert isinstance(given, memoryview)
            assert given.nbytes == plan.tokens * engine.hidden_bytes
            passed = memoryview(bytes(given))  # what arrives is another buffer, and may be read-only
        return self.engines[-1].logits(plan, passed)


def plan_of(rows: Sequence[Row]) -> Plan:
    return Plan(Tick(0), NO_SLOT, tuple(rows), (), (), 0)


class Text:
    """Tokens with a page table, of which some are in the cache."""

    def __init__(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.pages = tuple(PageId(page) for page in pages)
        self.cached = 0

    @property
    def left(self) -> int:
        return len(self.tokens) - self.cached

    def row(self, count: int, page_size: int) -> Row:
        """The next tokens, from whose last one is sampled."""
        start, end = self.cached, min(self.cached + count, len(self.tokens))
        self.cached = end
        pages = self.pages[: pages_for(end, page_size)]
        return Row(Room(RequestId(1), 0), self.tokens[start:end], start, pages, True, Sampling())


def random_sequences(dice: random.Random, lengths: Sequence[int], page_size: int, num_pages: int) -> list[Text]:
    """Over pages in any order."""
    numbers = dice.sample(range(num_pages), num_pages)
    found = []
    for length in lengths:
        pages = [numbers.pop() for _ in range(pages_for(length, page_size))]
        found.append(Text([dice.randrange(VOCAB) for _ in range(length)], pages))
    return found


def all_logits(engine: Any, tokens: Sequence[int]) -> Tensor:
    """[tokens, vocab] in float32: every token is a row of its own, in one plan."""
    pages = tuple(PageId(page) for page in range(pages_for(len(tokens), 16)))
    rows = [
        Row(Room(RequestId(1), 0), (token,), at, pages[: pages_for(at + 1, 16)], True, Sampling())
        for at, token in enumerate(tokens)
    ]
    found: Tensor = engine.logits(plan_of(rows)).float()
    return found
