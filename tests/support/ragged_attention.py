"""Paged attention in a few lines of torch, on what FlashInfer is told of a plan: the reference of its engine."""

import torch
from torch import Tensor

from tandem.engine.flashinfer.planning import Ragged
from tandem.engine.shape import ModelShape


class RaggedAttention:
    """Fits `flashinfer.attention.Attention` on any device, one row at a time."""

    def __init__(self, shape: ModelShape) -> None:
        self._window = shape.window
        self.planned: list[Ragged] = []

    def plan(self, rows: Ragged) -> None:
        self.planned.append(rows)

    def run(self, query: Tensor, pool: Tensor) -> Tensor:
        rows = self.planned[-1]
        return torch.cat([self._row(rows, row, query, pool) for row in range(rows.rows)])

    def _row(self, rows: Ragged, row: int, query: Tensor, pool: Tensor) -> Tensor:
        first, last = rows.qo_indptr[row : row + 2].tolist()
        begin, end = rows.kv_indptr[row : row + 2].tolist()
        pages = pool[rows.kv_indices[begin:end].long().to(pool.device)]
        tokens = (end - begin - 1) * pool.shape[2] + int(rows.last_page_len[row])
        key, value = (pages[:, which].flatten(0, 1)[:tokens].transpose(0, 1) for which in (0, 1))
        at = torch.arange(tokens - (last - first), tokens, device=pool.device)[:, None]
        seen = torch.arange(tokens, device=pool.device)[None]
        mask = (seen <= at) if not self._window else (seen <= at) & (seen > at - self._window)
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[first:last].transpose(0, 1), key, value, attn_mask=mask, enable_gqa=True
        )
        return attended.transpose(0, 1)
