"""Whether FlashInfer can compute a model on this machine."""

import importlib.util

from tandem.engine.shape import ModelShape

HEAD_DIMS = (64, 128, 256)
"""Head sizes that its paged kernels are built for."""


def obstacle(shape: ModelShape, dtype: str, page_size: int) -> str:
    """Why it cannot be had here for a model; empty: it can. torch is imported only when FlashInfer is installed."""
    if dtype != "bfloat16":
        return f"it computes in bfloat16, and --dtype is {dtype}"
    if shape.head_dim not in HEAD_DIMS:
        return f"the model's heads have {shape.head_dim} items: it has kernels for {', '.join(map(str, HEAD_DIMS))}"
    if page_size < 1:
        return f"--page-size is {page_size}"
    if importlib.util.find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install flashinfer-python)"
    import torch

    if not torch.cuda.is_available():
        return "this torch finds no CUDA device"
    return ""
