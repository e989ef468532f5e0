"""Paged attention by FlashInfer: planned once for a plan's rows, then run by every layer."""

from typing import Any, Protocol

import torch
from torch import Tensor

from tandem.engine.flashinfer.planning import Ragged
from tandem.engine.shape import ModelShape

WORKSPACE_BYTES = 128 * 1024 * 1024
"""For partial results of split sequences: what FlashInfer's documentation recommends."""
LAYOUT = "NHD"
"""A page is [2, page_size, kv_heads, head_dim]."""


class Attention(Protocol):
    """What a stage needs of an attention backend."""

    def plan(self, rows: Ragged) -> None:
        """Prepare for these rows. Not to be captured in a graph."""
        ...

    def run(self, query: Tensor, pool: Tensor) -> Tensor:
        """Attend, with the K and V of the plan's tokens already in the pool.

        query [tokens, heads, head_dim], pool [pages, 2, page_size, kv_heads, head_dim] of one layer; returns the shape
        of the query.
        """
        ...


class Sizes:
    """The arguments that every `plan` of a model has in common."""

    def __init__(self, shape: ModelShape, page_size: int, dtype: torch.dtype) -> None:
        self.heads = (shape.heads, shape.kv_heads, shape.head_dim, page_size)
        self.more: dict[str, Any] = {
            "q_data_type": dtype,
            "kv_data_type": dtype,
            "window_left": shape.window - 1 if shape.window else -1,  # without the token itself
        }


class PagedPrefill:
    """Rows of any number of tokens, each attending to all before it."""

    def __init__(self, sizes: Sizes, workspace: Tensor) -> None:
        import flashinfer

        self._sizes = sizes
        self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, LAYOUT)

    def plan(self, rows: Ragged) -> None:
        """See Attention."""
        self._wrapper.plan(
            rows.qo_indptr,
            rows.kv_indptr,
            rows.kv_indices,
            rows.last_page_len,
            *self._sizes.heads,
            causal=True,
            **self._sizes.more,
        )

    def run(self, query: Tensor, pool: Tensor) -> Tensor:
        """See Attention."""
        attended: Tensor = self._wrapper.run(query, pool)
        return attended


class PagedDecode:
    """A fixed number of rows of one token, whose kernels can be captured: page tables lie in buffers of its own."""

    def __init__(self, sizes: Sizes, workspace: Tensor, rows: int, num_pages: int) -> None:
        """`num_pages`: the most that all rows may have together."""
        import flashinfer

        def buffer(length: int) -> Tensor:
            return torch.zeros(length, dtype=torch.int32, device=workspace.device)

        self._sizes = sizes
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=True,  # for any number of heads per KV head
            paged_kv_indptr_buffer=buffer(rows + 1),
            paged_kv_indices_buffer=buffer(num_pages),
            paged_kv_last_page_len_buffer=buffer(rows),
        )

    def plan(self, rows: Ragged) -> None:
        """See Attention. What has been captured finds the new page tables where the old ones were."""
        self._wrapper.plan(rows.kv_indptr, rows.kv_indices, rows.last_page_len, *self._sizes.heads, **self._sizes.more)

    def run(self, query: Tensor, pool: Tensor) -> Tensor:
        """See Attention."""
        attended: Tensor = self._wrapper.run(query, pool)
        return attended
