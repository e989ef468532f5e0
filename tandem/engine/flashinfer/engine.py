"""The engine port on a GPU: prompts layer by layer, decode by captured graphs, hidden states on a stream of their own.

`run` returns when its output is in host memory. The next plan's kernels may not write what is still being read: an
output in place is fenced until its copy has ended, which `Outbox` knows.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tandem.core.ids import LayerId
from tandem.core.plan import Plan, Row
from tandem.engine.flashinfer.attention import WORKSPACE_BYTES, Attention, PagedDecode, PagedPrefill, Sizes
from tandem.engine.flashinfer.graphs import DecodeGraphs, Forwards
from tandem.engine.flashinfer.link import Arrivals, Departures
from tandem.engine.flashinfer.memory import DeviceMemory
from tandem.engine.flashinfer.outbox import Inbox, Outbox, WayIn, WayOut
from tandem.engine.flashinfer.planning import is_decode, lay_out
from tandem.engine.flashinfer.stage import Stage
from tandem.engine.masks import Masks
from tandem.engine.sampler import draw
from tandem.engine.shape import ModelShape
from tandem.engine.weights import StageWeights
from tandem.ports import NOTHING_SAMPLED, Sampled


class FlashInferEngine:
    """Fits `ports.Engine`. Without `graphs`, all rows are computed by `attention`, as on a device that has none."""

    def __init__(
        self,
        shape: ModelShape,
        stage: Stage,
        memory: DeviceMemory,
        attention: Attention,
        graphs: Forwards | None,
        *,
        page_size: int,
    ) -> None:
        self.memory = memory
        self._masks = Masks(shape)
        self._stage = stage
        self._attention = attention
        self._graphs = graphs
        self._page_size = page_size
        self._device = stage.pool.device
        self.hidden_bytes = shape.hidden * stage.pool.dtype.itemsize
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self.outbox: WayOut = Outbox(self._device)
        self.inbox: WayIn = Inbox(self._device, shape.hidden, stage.pool.dtype)

    def use_nccl(self) -> None:
        """Hidden states stay on the device from now on: what goes in and out of `run` are tickets for them."""
        self.outbox = Departures(self._device)
        self.inbox = Arrivals(self._device, self._stage.hidden, self._stage.pool.dtype)

    def compile(self, grammar: str) -> None:
        """See `ports.Engine.compile`. Every stage does what the last one will do, so rank 0 knows whether it can."""
        self._masks.compile(grammar)

    @torch.inference_mode()
    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """See `ports.Engine.run`. The returned memoryview is flat: tokens * hidden_bytes bytes."""
        with torch.cuda.stream(self._stream):
            out = self._forward(plan, hidden, layer_ran)
            return self._sample(plan, out) if self._stage.last else self.outbox.put(out)

    @torch.inference_mode()
    def logits(self, plan: Plan, hidden: memoryview | None = None) -> Tensor:
        """Like `run` on the last stage, before sampling: [sampled rows, vocab] on the CPU. For tests."""
        with torch.cuda.stream(self._stream):
            return self._forward(plan, hidden, lambda _: None).cpu()

    def _forward(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> Tensor:
        """Hidden states, or on the last stage logits; all layers have ended and were told."""
        self.outbox.fence()
        x = self.inbox.take(hidden) if hidden is not None else None
        out = self._decode(plan.rows, x, layer_ran)
        return self._prefill(plan, x, layer_ran) if out is None else out

    def _decode(self, rows: tuple[Row, ...], x: Tensor | None, layer_ran: Callable[[LayerId], None]) -> Tensor | None:
        """By a graph, if there is one: then all layers are done at once."""
        if self._graphs is None or not is_decode(rows):
            return None
        out = self._graphs.run(rows, x)
        if out is not None:
            ended = _mark(self._stream)
            _wait(ended)
            for layer in range(self.memory.region.first_layer, self.memory.region.last_layer):
                layer_ran(LayerId(layer))
        return out

    def _prefill(self, plan: Plan, x: Tensor | None, layer_ran: Callable[[LayerId], None]) -> Tensor:
        """One kernel after the other; each layer is told as soon as it has ended, while later ones compute."""
        rows = lay_out(plan.rows, self._page_size)
        self._attention.plan(rows)
        if x is None:
            x = self._stage.embed(rows.tokens.to(self._device, non_blocking=True))
        positions, cells = (each.to(self._device, non_blocking=True) for each in (rows.positions, rows.cells))
        marks: list[torch.cuda.Event | None] = []
        x = self._stage.layers(x, positions, cells, self._attention, lambda _: marks.append(_mark(self._stream)))
        if self._stage.last:
            x = self._stage.logits(x.index_select(0, rows.sampled.to(self._device)))
        for index, mark in enumerate(marks):
            _wait(mark)
            layer_ran(LayerId(self.memory.region.first_layer + index))
        return x

    def _sample(self, plan: Plan, logits: Tensor) -> Sampled:
        """On the CPU, by the same code as every engine: a token depends on its row alone."""
        rows = [row for row in plan.rows if row.samples]
        if not rows:
            return NOTHING_SAMPLED
        allowed = {index: torch.from_numpy(self._masks.allowed(row)) for index, row in enumerate(rows) if row.grammar}
        return draw(logits.cpu(), rows, allowed)


def _mark(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    """When what is queued has ended; None where everything has ended when it returns."""
    return None if stream is None else stream.record_event()


def _wait(mark: torch.cuda.Event | None) -> None:
    if mark is not None:
        mark.synchronize()


def on_gpu(shape: ModelShape, weights: StageWeights, memory: DeviceMemory, *, page_size: int) -> FlashInferEngine:
    """The engine with FlashInfer's kernels and decode graphs, over pages of a GPU."""
    pool = pages_of(memory, shape, page_size)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=pool.device)
    stage, sizes = Stage(shape, weights, pool), Sizes(shape, page_size, pool.dtype)
    graphs = DecodeGraphs(stage, partial(PagedDecode, sizes, workspace), shape.context)
    return FlashInferEngine(shape, stage, memory, PagedPrefill(sizes, workspace), graphs, page_size=page_size)


def pages_of(memory: DeviceMemory, shape: ModelShape, page_size: int) -> Tensor:
    """The pool as [layers, pages, 2, page_size, kv_heads, head_dim] in bfloat16."""
    layers, num_pages, _ = memory.pages.shape
    return memory.pages.view(torch.bfloat16).view(layers, num_pages, 2, page_size, shape.kv_heads, shape.head_dim)
