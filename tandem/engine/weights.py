"""Loads the weights of one stage, tensor by tensor, from a GGUF file or from safetensors. Nothing is ever unpickled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.engine.directory import weight_files, weight_map
from tandem.engine.gguf_file import Header, read_header
from tandem.engine.gguf_model import PERMUTED, stored_name
from tandem.engine.shape import ModelShape

Progress = Callable[[int, int], None]
"""Called with (tensors loaded, tensors to load)."""

Source = Callable[[str], Tensor]
"""The tensor of a Hugging Face name, in the dtype that was asked for; nothing of it is in the file any more."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STORED = (torch.float32, torch.bfloat16, torch.float16)
"""What safetensors may hold: anything else means something only together with other tensors."""
DEQUANTISED_ITEMS = 1 << 22
"""Numbers of a GGUF file that are float32 at one time."""


class LayerWeights(NamedTuple):
    """One decoder layer. Matrices are [out, in]; qkv and gate_up are stacked by rows, so that one product does."""

    attn_norm: Tensor
    qkv: Tensor
    attn_out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None  # stacked like qkv
    q_norm: Tensor | None = None  # [head_dim], of every head of q; k_norm likewise
    k_norm: Tensor | None = None


class Ends(NamedTuple):
    """What a stage has besides its layers: `embedding` on the first, `norm` and `head` on the last, [vocab, hidden]."""

    embedding: Tensor | None
    norm: Tensor | None
    head: Tensor | None


class StageWeights(NamedTuple):
    """The layers of one stage, and its ends."""

    layers: tuple[LayerWeights, ...]
    embedding: Tensor | None
    norm: Tensor | None
    head: Tensor | None


Finished = TypeVar("Finished")
"""What an engine makes of a layer."""


def load_weights(
    shape: ModelShape, layers: tuple[LayerId, LayerId], dtype: torch.dtype, progress: Progress | None = None
) -> StageWeights:
    """Load the layers [first, last) of a model as they are. Raises ConfigError as `load_stage` does."""
    found, ends = load_stage(shape, layers, dtype, lambda layer: layer, progress)
    return StageWeights(found, *ends)


def load_stage(
    shape: ModelShape,
    layers: tuple[LayerId, LayerId],
    dtype: torch.dtype,
    finish: Callable[[LayerWeights], Finished],
    progress: Progress | None = None,
) -> tuple[tuple[Finished, ...], Ends]:
    """Load the layers [first, last) of a model. Raises ConfigError when a tensor is missing or of the wrong shape.

    Each layer is what `finish` makes of it, before the next is loaded: so no more than one is in memory twice.
    """
    first, last = layers
    path = Path(shape.path)
    source = _safetensors(path, dtype) if path.is_dir() else _gguf(path, shape, dtype)
    starts, ends = first == 0, last == shape.layers
    total = (last - first) * tensors_per_layer(shape) + starts + ends + (ends and not (starts and shape.tied))
    loader = _Loader(source, total, progress)
    table = (shape.vocab, shape.hidden)
    embedding = loader.load("model.embed_tokens.weight", table) if starts else None
    found = tuple(finish(_layer(loader, shape, layer)) for layer in range(first, last))
    norm = loader.load("model.norm.weight", (shape.hidden,)) if ends else None
    head = None
    if ends:
        head = embedding if shape.tied else loader.load("lm_head.weight", table)
        if head is None:
            head = loader.load("model.embed_tokens.weight", table)
    return found, Ends(embedding, norm, head)


def tensors_per_layer(shape: ModelShape) -> int:
    """How many tensors of a file make one layer."""
    return 9 + 3 * shape.qkv_bias + 2 * shape.qk_norm


class _Loader:
    """Checks and counts tensors."""

    def __init__(self, source: Source, total: int, progress: Progress | None) -> None:
        self._source = source
        self._done = 0
        self._total = total
        self._progress = progress

    def load(self, name: str, size: tuple[int, ...]) -> Tensor:
        tensor = self._source(name)
        if tuple(tensor.shape) != size:
            raise ConfigError(f"tensor {name} is {tuple(tensor.shape)}, the model's description says {size}")
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor.contiguous()


def _layer(loader: _Loader, shape: ModelShape, layer: int) -> LayerWeights:
    head_dim, hidden, inner = shape.head_dim, shape.hidden, shape.intermediate
    heads = (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))

    def load(name: str, *size: int) -> Tensor:
        return loader.load(f"model.layers.{layer}.{name}", size)

    return LayerWeights(
        attn_norm=load("input_layernorm.weight", hidden),
        qkv=torch.cat([load(f"self_attn.{n}_proj.weight", count * head_dim, hidden) for n, count in heads]),
        attn_out=load("self_attn.o_proj.weight", hidden, shape.heads * head_dim),
        ffn_norm=load("post_attention_layernorm.weight", hidden),
        gate_up=torch.cat([load(f"mlp.{n}_proj.weight", inner, hidden) for n in ("gate", "up")]),
        down=load("mlp.down_proj.weight", hidden, inner),
        qkv_bias=torch.cat([load(f"self_attn.{n}_proj.bias", count * head_dim) for n, count in heads])
        if shape.qkv_bias
        else None,
        q_norm=load("self_attn.q_norm.weight", head_dim) if shape.qk_norm else None,
        k_norm=load("self_attn.k_norm.weight", head_dim) if shape.qk_norm else None,
    )


def _safetensors(path: Path, dtype: torch.dtype) -> Source:
    """Tensors come out of the memory-mapped files one by one, and files without any of ours are never opened.

    No file stays mapped: what has been read of it would count as this process's memory.
    """
    homes = weight_map(path)
    if not homes:
        for file in weight_files(path):
            with _opened(file) as tensors:
                homes |= dict.fromkeys(tensors.keys(), file.name)

    def source(name: str) -> Tensor:
        if name not in homes:
            raise ConfigError(f"model {str(path)!r} has no tensor {name}")
        try:
            with _opened(path / homes[name]) as tensors:
                tensor: Tensor = tensors.get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"tensor {name} cannot be read from {path / homes[name]}: {error}") from None
        if tensor.dtype not in STORED:
            raise ConfigError(
                f"tensor {name} of {str(path)!r} is {str(tensor.dtype).removeprefix('torch.')}: quantised safetensors "
                "are not supported; give the model in bfloat16, float16 or float32, or as a GGUF file"
            )
        return tensor.to(dtype, copy=True)

    return source


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"model file {file} cannot be read: {error}; is the download complete?") from None


def _gguf(path: Path, shape: ModelShape, dtype: torch.dtype) -> Source:
    header = read_header(path)
    data = np.memmap(path, np.uint8, "r")
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads} if shape.architecture in PERMUTED else {}

    def source(name: str) -> Tensor:
        stored, kind = stored_name(name)
        tensor = _dequantize(header, data, stored, path, dtype)
        return unpermute(tensor, heads[kind]) if kind in heads else tensor

    return source


def _dequantize(header: Header, data: np.ndarray, name: str, path: Path, dtype: torch.dtype) -> Tensor:
    """Some rows after the other: numpy's float32 of a whole table would be several times what is kept of it."""
    info = header.tensors.get(name)
    if info is None:
        raise ConfigError(f"model {str(path)!r} has no tensor {name}")
    try:
        kind = GGMLQuantizationType(info.kind)
    except ValueError:
        raise ConfigError(f"tensor {name} of {str(path)!r} has the unknown type {info.kind}") from None
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = info.shape[-1] // per_block * block_bytes
    rows = int(np.prod(info.shape[:-1], dtype=np.int64))
    stored = data[info.offset : info.offset + rows * row_bytes]
    at_once = max(1, DEQUANTISED_ITEMS // max(1, info.shape[-1]))
    try:
        stored = stored.reshape(rows, row_bytes)
        found = torch.empty(rows, info.shape[-1], dtype=dtype)
        for at in range(0, rows, at_once):
            values = dequantize(stored[at : at + at_once], kind)
            found[at : at + at_once] = torch.from_numpy(np.array(values, np.float32))  # a copy: the file is read-only
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(f"tensor {name} of {str(path)!r} ({kind.name}) cannot be read: {error}") from error
    return found.view(info.shape)


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo what llama.cpp's converter does to the q and k rows of a Llama, [heads * head_dim, hidden].

    It interleaves the two halves of each head (so that rope turns neighbours); Hugging Face turns the halves.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
