"""Rotary position embedding (Su et al. 2021) in torch."""

import torch
from torch import Tensor

from tandem.engine.rope import frequencies
from tandem.engine.shape import ModelShape


def tables(shape: ModelShape, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin for every position of the context, [context, head_dim]: both halves alike. Of the kind of `like`."""
    turns, factor = frequencies(shape)
    angles = torch.outer(torch.arange(shape.context).float(), torch.from_numpy(turns).float())
    angles = torch.cat([angles, angles], dim=-1)
    return (angles.cos() * factor).to(like), (angles.sin() * factor).to(like)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Over halves, as Hugging Face does it. x [tokens, heads, head_dim], cos and sin [tokens, 1, head_dim]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
