"""Decode forwards as CUDA graphs: one launch for all kernels of a stage, whose inputs and output lie in place."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tandem.core.plan import Row
from tandem.core.requests import pages_for
from tandem.engine.flashinfer.attention import Attention
from tandem.engine.flashinfer.planning import Ragged, graph_rows, lay_out, padded
from tandem.engine.flashinfer.stage import Stage


class Forwards(Protocol):
    """Decode forwards that are faster than one kernel after the other."""

    def run(self, rows: tuple[Row, ...], hidden: Tensor | None) -> Tensor | None:
        """The stage's output for rows of one token each: hidden states, or logits on the last stage. None: too many.

        It is overwritten by the next call: who still reads it must be waited for first.
        """
        ...


class DecodeGraphs:
    """Captures a graph for each size in GRAPH_ROWS when it is first needed. One call at a time, on one stream."""

    def __init__(self, stage: Stage, attention: Callable[[int, int], Attention], context: int) -> None:
        """`attention` makes one for so many rows, and so many pages of all of them; `context`: a row's most tokens."""
        self._stage = stage
        self._attention = attention
        self._page_size = stage.pool.shape[3]
        self._row_pages = min(pages_for(context, self._page_size), stage.pool.shape[1])
        self._graphs: dict[int, _Graph] = {}

    def run(self, rows: tuple[Row, ...], hidden: Tensor | None) -> Tensor | None:
        """See Forwards."""
        size = graph_rows(len(rows))
        if size is None:
            return None
        ragged = lay_out(padded(rows, size), self._page_size)
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._graphs[size] = _Graph(self._stage, self._attention(size, self._row_pages * size), size)
        return graph.run(ragged, hidden)[: len(rows)]


class _Graph:
    """A forward of so many rows. On the CPU, where nothing can be captured, it is computed anew: for tests."""

    def __init__(self, stage: Stage, attention: Attention, size: int) -> None:
        device = stage.pool.device
        self._stage = stage
        self._attention = attention
        self._tokens, self._positions, self._cells = (
            torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._hidden = torch.zeros(size, stage.hidden, dtype=stage.pool.dtype, device=device)
        self._captures = stage.pool.is_cuda
        self._graph: torch.cuda.CUDAGraph | None = None
        self._out = self._hidden

    def run(self, rows: Ragged, hidden: Tensor | None) -> Tensor:
        """The output in place. The first call captures: what it computes on the way is what it was asked for."""
        self._tokens.copy_(rows.tokens, non_blocking=True)
        self._positions.copy_(rows.positions, non_blocking=True)
        self._cells.copy_(rows.cells, non_blocking=True)
        if hidden is not None:
            self._hidden[: len(hidden)].copy_(hidden)
            self._hidden[len(hidden) :].copy_(hidden[:1].expand(len(self._hidden) - len(hidden), -1))
        self._attention.plan(rows)
        if not self._captures:
            return self._forward(first=hidden is None)
        if self._graph is None:
            self._graph = self._capture(first=hidden is None)
        self._graph.replay()
        return self._out

    def _capture(self, *, first: bool) -> torch.cuda.CUDAGraph:
        self._forward(first=first)  # kernels that are compiled or tuned at their first call do so now
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # other threads, such as those that copy pages, go on meanwhile
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self._out = self._forward(first=first)
        return graph

    def _forward(self, *, first: bool) -> Tensor:
        x = self._stage.embed(self._tokens) if first else self._hidden
        x = self._stage.layers(x, self._positions, self._cells, self._attention, lambda _: None)
        return self._stage.logits(x) if self._stage.last else x
