"""The engine port in native code on the CPU: one call for all layers of a stage, over a paged KV cache."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.core.ids import LayerId
from tandem.core.plan import Plan, Row
from tandem.core.requests import pages_for
from tandem.engine.cpu.cores import ALONE, Place
from tandem.engine.cpu.native import Batch, LayerRan, Stage
from tandem.engine.cpu.packed import PackedWeights
from tandem.engine.masks import Masks
from tandem.engine.memory import Pool
from tandem.engine.rope import frequencies
from tandem.engine.sampler import draw
from tandem.engine.shape import ModelShape
from tandem.ports import NOTHING_SAMPLED, Sampled

HIDDEN_ITEM_BYTES = 4
"""Between stages the residual stream is float32, so where the layers are cut changes no bit."""


class CpuEngine:
    """Fits `ports.Engine`. Weights and pages are bfloat16, hidden states [tokens, hidden] float32."""

    def __init__(
        self,
        shape: ModelShape,
        packed: PackedWeights,
        memory: Pool,
        *,
        page_size: int,
        threads: int = 1,
        place: Place | None = None,
    ) -> None:
        """With at most so many threads; with a `place`, with fewer while other stages of this machine compute."""
        self.memory = memory
        self.hidden_bytes = shape.hidden * HIDDEN_ITEM_BYTES
        self._shape = shape
        self._page_size = page_size
        self._masks = Masks(shape)
        self._native = packed.native
        self._packed = packed
        self._angles = _rope_tables(shape)
        self._pool = np.frombuffer(memory.buffer, np.uint8)
        self._stage = self._describe()
        self._hidden: NDArray[np.float32] = np.empty((0, shape.hidden), np.float32)
        self._place = place
        self._worker = self._native.open(threads, *(place.shared() if place else ALONE))
        if not self._worker:
            raise MemoryError(f"no memory, or no threads, for a stage with {threads} threads")
        weakref.finalize(self, self._native.close, self._worker).atexit = False

    @property
    def threads(self) -> int:
        """How many would compute a layer now."""
        part: int = self._native.part(self._worker)
        return part

    def compile(self, grammar: str) -> None:
        """See `ports.Engine.compile`. Every stage does what the last one will do, so rank 0 knows whether it can."""
        self._masks.compile(grammar)

    @torch.inference_mode()
    def run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> memoryview | Sampled:
        """See `ports.Engine.run`. The returned memoryview is flat: tokens * hidden_bytes bytes."""
        logits = self._run(plan, hidden, layer_ran)
        if self._stage.head is None:
            flat: memoryview = self._hidden[: plan.tokens].data.cast("B")
            return flat
        rows = [row for row in plan.rows if row.samples]
        if not rows:
            return NOTHING_SAMPLED
        allowed = {index: torch.from_numpy(self._masks.allowed(row)) for index, row in enumerate(rows) if row.grammar}
        return draw(logits, rows, allowed)

    @torch.inference_mode()
    def logits(self, plan: Plan, hidden: memoryview | None = None) -> Tensor:
        """Like `run` on the last stage, before sampling: [sampled rows, vocab] float32. For tests."""
        return self._run(plan, hidden, lambda _: None)

    def _run(self, plan: Plan, hidden: memoryview | None, layer_ran: Callable[[LayerId], None]) -> Tensor:
        """Leaves the hidden states in `_hidden`; the logits are of the rows that sample, on the last stage."""
        rows, tokens = plan.rows, plan.tokens
        self._take_in(tokens, hidden)
        ends = _integers(accumulate((len(row.tokens) for row in rows), initial=0))
        table, first_page = self._page_tables(rows)
        sampled = [end - 1 for row, end in zip(rows, ends[1:].tolist(), strict=True) if row.samples]
        if self._stage.head is None:
            sampled = []
        logits = torch.empty(len(sampled), self._packed.padded_vocab)
        ids = self._ids(rows) if hidden is None else _integers(())
        start, sampled_at = _integers(row.start for row in rows), _integers(sampled)
        teller = _Teller(layer_ran, self.memory.region.first_layer)
        batch = Batch(
            rows=len(rows),
            tokens=tokens,
            sampled=len(sampled),
            first_token=ends.ctypes.data,
            start=start.ctypes.data,
            first_page=first_page.ctypes.data,
            pages=table.ctypes.data,
            ids=ids.ctypes.data,
            sampled_at=sampled_at.ctypes.data,
            hidden=self._hidden.ctypes.data,
            logits=logits.data_ptr(),
            layer_ran=LayerRan(teller.tell),
        )
        if self._native.run(self._worker, self._stage, batch):
            raise MemoryError(f"no memory for a plan of {tokens} tokens")
        teller.check()
        return logits[:, : self._shape.vocab]

    def _take_in(self, tokens: int, hidden: memoryview | None) -> None:
        """A copy, since the sender's buffer may be read-only and does not outlive the call."""
        assert (hidden is None) == (self._stage.embedding is not None), "the first stage alone runs without them"
        if len(self._hidden) < tokens:
            self._hidden = np.empty((tokens, self._shape.hidden), np.float32)
        if hidden is not None:
            self._hidden[:tokens].data.cast("B")[:] = hidden.cast("B")

    def _ids(self, rows: Sequence[Row]) -> NDArray[np.int32]:
        ids = _integers(chain.from_iterable(row.tokens for row in rows))
        if ids.size and not 0 <= ids.min() <= ids.max() < self._shape.vocab:
            raise IndexError(f"a token is not in the vocabulary of {self._shape.vocab}")
        return ids

    def _page_tables(self, rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """All tables one after another, and where each begins. Raises IndexError for what native code cannot use."""
        needed = [pages_for(row.end, self._page_size) for row in rows]
        for row, count in zip(rows, needed, strict=True):
            if len(row.pages) < count or row.end > self._shape.context:
                raise IndexError(f"{row.end} tokens do not fit {len(row.pages)} pages and the context")
        table = _integers(chain.from_iterable(row.pages[:count] for row, count in zip(rows, needed, strict=True)))
        if not 0 <= table.min() <= table.max() < self.memory.region.num_pages:
            raise IndexError(f"a page is not among the pool's {self.memory.region.num_pages}")
        return table, _integers(accumulate(needed[:-1], initial=0))

    def _describe(self) -> Stage:
        shape, region, packed = self._shape, self.memory.region, self._packed
        layers = region.last_layer - region.first_layer
        if len(packed.layers) != layers:
            raise ValueError(f"weights of {len(packed.layers)} layers do not fit the pages of {region}")
        cos, sin = self._angles
        return Stage(
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            padded_vocab=packed.padded_vocab,
            page_size=self._page_size,
            window=shape.window,
            eps=shape.eps,
            layers=layers,
            layer=packed.layers,
            embedding=packed.embedding,
            norm=packed.norm,
            head=packed.head,
            cos=cos.ctypes.data,
            sin=sin.ctypes.data,
            pages=self._pool.ctypes.data,
            layer_items=region.num_pages * region.block_bytes // 2,
            block_items=region.block_bytes // 2,
        )


class _Teller:
    """What native code calls after each layer; it cannot pass an exception on."""

    def __init__(self, layer_ran: Callable[[LayerId], None], first_layer: int) -> None:
        self._layer_ran = layer_ran
        self._first_layer = first_layer
        self._failed: BaseException | None = None

    def tell(self, index: int) -> None:
        if self._failed is None:
            try:
                self._layer_ran(LayerId(self._first_layer + index))
            except BaseException as error:  # noqa: BLE001  `check` raises it, once the call is over
                self._failed = error

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed


def _integers(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def _rope_tables(shape: ModelShape) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin for every position of the context, [context, head_dim / 2]; rounded where `frequencies` says."""
    turns, factor = frequencies(shape)
    angles = np.outer(np.arange(shape.context, dtype=np.float32), turns.astype(np.float32))
    return np.cos(angles) * np.float32(factor), np.sin(angles) * np.float32(factor)
