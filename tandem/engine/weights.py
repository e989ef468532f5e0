"""Loads the weights of one stage, tensor by tensor, from a GGUF file or from safetensors. Nothing is ever unpickled."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.engine.gguf_file import Header, read_header
from tandem.engine.model import ModelShape, weight_files

Progress = Callable[[int, int], None]
"""Called with (tensors loaded, tensors to load)."""

Source = Callable[[str], Tensor]
"""The tensor of a Hugging Face name, in whatever dtype it is stored."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

LAYER_TENSORS = 9
_GGUF_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class LayerWeights(NamedTuple):
    """One decoder layer. Matrices are [out, in]; qkv and gate_up are stacked by rows, so that one product does."""

    attn_norm: Tensor
    qkv: Tensor
    attn_out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


class StageWeights(NamedTuple):
    """The layers of one stage; `embedding` only on the first, `norm` and `head` only on the last, [vocab, hidden]."""

    layers: tuple[LayerWeights, ...]
    embedding: Tensor | None
    norm: Tensor | None
    head: Tensor | None


def load_weights(
    shape: ModelShape, layers: tuple[LayerId, LayerId], dtype: torch.dtype, progress: Progress | None = None
) -> StageWeights:
    """Load the layers [first, last) of a model. Raises ConfigError when a tensor is missing or of the wrong shape."""
    first, last = layers
    with ExitStack() as files:
        path = Path(shape.path)
        source = _safetensors(path, files) if path.is_dir() else _gguf(path, shape)
        starts, ends = first == 0, last == shape.layers
        total = (last - first) * LAYER_TENSORS + starts + ends + (ends and not (starts and shape.tied))
        loader = _Loader(source, dtype, total, progress)
        table = (shape.vocab, shape.hidden)
        embedding = loader.load("model.embed_tokens.weight", table) if starts else None
        found = tuple(_layer(loader, shape, layer) for layer in range(first, last))
        norm = loader.load("model.norm.weight", (shape.hidden,)) if ends else None
        head = None
        if ends:
            head = embedding if shape.tied else loader.load("lm_head.weight", table)
            if head is None:
                head = loader.load("model.embed_tokens.weight", table)
        return StageWeights(layers=found, embedding=embedding, norm=norm, head=head)


class _Loader:
    """Checks, converts and counts tensors."""

    def __init__(self, source: Source, dtype: torch.dtype, total: int, progress: Progress | None) -> None:
        self._source = source
        self._dtype = dtype
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
        return tensor.to(self._dtype).contiguous()


def _layer(loader: _Loader, shape: ModelShape, layer: int) -> LayerWeights:
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, inner = shape.hidden, shape.intermediate

    def load(name: str, *size: int) -> Tensor:
        return loader.load(f"model.layers.{layer}.{name}.weight", size)

    q, k, v = (load(f"self_attn.{n}_proj", size, hidden) for n, size in (("q", wide), ("k", narrow), ("v", narrow)))
    return LayerWeights(
        attn_norm=load("input_layernorm", hidden),
        qkv=torch.cat([q, k, v]),
        attn_out=load("self_attn.o_proj", hidden, wide),
        ffn_norm=load("post_attention_layernorm", hidden),
        gate_up=torch.cat([load("mlp.gate_proj", inner, hidden), load("mlp.up_proj", inner, hidden)]),
        down=load("mlp.down_proj", hidden, inner),
    )


def _safetensors(path: Path, files: ExitStack) -> Source:
    """Tensors come out of the memory-mapped file one by one, so other stages' layers are never read."""
    homes = {}
    for file in weight_files(path):
        try:
            opened = files.enter_context(safe_open(file, framework="pt"))
        except SafetensorError as error:
            raise ConfigError(f"model file {file} cannot be read: {error}; is the download complete?") from None
        homes.update(dict.fromkeys(opened.keys(), opened))

    def source(name: str) -> Tensor:
        if name not in homes:
            raise ConfigError(f"model {str(path)!r} has no tensor {name}")
        tensor: Tensor = homes[name].get_tensor(name)
        return tensor

    return source


def _gguf(path: Path, shape: ModelShape) -> Source:
    header = read_header(path)
    data = np.memmap(path, np.uint8, "r")
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}

    def source(name: str) -> Tensor:
        stored, kind = _gguf_name(name)
        tensor = torch.from_numpy(_dequantize(header, data, stored, path))
        return unpermute(tensor, heads[kind]) if kind in heads else tensor

    return source


def _gguf_name(name: str) -> tuple[str, str]:
    """A tensor's name in a GGUF file, and its kind inside a layer."""
    if name in _GGUF_OUTER:
        return _GGUF_OUTER[name], ""
    layer, _, inner = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    kind = _GGUF_INNER[inner]
    return f"blk.{layer}.{kind}.weight", kind


def _dequantize(header: Header, data: np.ndarray, name: str, path: Path) -> np.ndarray:
    info = header.tensors.get(name)
    if info is None:
        raise ConfigError(f"model {str(path)!r} has no tensor {name}")
    kind = GGMLQuantizationType(info.kind)
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    row_bytes = info.shape[-1] // per_block * block_bytes
    rows = info.shape[:-1]
    stored = data[info.offset : info.offset + int(np.prod(rows, dtype=np.int64)) * row_bytes]
    try:
        values = dequantize(stored.reshape(*rows, row_bytes), kind)
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(f"tensor {name} of {str(path)!r} ({kind.name}) cannot be read: {error}") from error
    return np.array(values, np.float32)  # a copy: float32 tensors would be views of the read-only file


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo what llama.cpp's converter does to q and k rows, [heads * head_dim, hidden].

    It interleaves the two halves of each head (so that rope turns neighbours); Hugging Face turns the halves.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
