"""The shape of a model in a Hugging Face directory, as transformers understands its config.json."""

import json
from pathlib import Path
from typing import Any

from tandem.core.errors import ConfigError
from tandem.engine.identity import weights_id
from tandem.engine.rope_config import config_rope
from tandem.engine.shape import SUPPORTED, ModelShape, checked

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
}
"""What a key that is missing means, by architecture. A key that is null means what is usual among Llamas."""

ONLY = (("hidden_act", "silu"), ("mlp_bias", False), ("partial_rotary_factor", 1.0), ("quantization_config", None))
"""Keys with the one value that is computed, which is also what they are by default."""


def directory_shape(path: Path) -> ModelShape:
    """The shape of the model in a directory. Raises ConfigError when the engine cannot compute it."""
    file = path / "config.json"
    config = read_json(file)
    architecture = str(config.get("model_type"))
    if architecture not in SUPPORTED:
        raise ConfigError(f"model_type is {architecture!r} in {str(file)!r}; supported: {', '.join(SUPPORTED)}")
    _check(config, architecture, file)
    config = DEFAULTS[architecture] | config
    identity = weights_id(weight_files(path))
    try:
        theta, scaling, context = config_rope(config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return checked(
            ModelShape(
                name=str(config.get("_name_or_path") or path.resolve().name),
                architecture=architecture,
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                vocab=int(config["vocab_size"]),
                context=context,
                rope_theta=theta,
                eps=float(config["rms_norm_eps"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                eos_ids=_eos_ids(path, config),
                path=str(path),
                weights_id=identity,
                qkv_bias=architecture == "qwen2",
                qk_norm=architecture == "qwen3",
                window=_window(config, architecture),
                rope_scaling=scaling,
            )
        )
    except ConfigError as error:
        raise ConfigError(f"{str(file)!r}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{str(file)!r} cannot be used: {error!r}") from error


def _check(config: dict[str, Any], architecture: str, file: Path) -> None:
    """Refuse what would load and then compute something else."""
    # Qwen2 has these biases whatever is said; where others have them, the output projection has one, too.
    only = ONLY if architecture == "qwen2" else (*ONLY, ("attention_bias", False))
    for key, expected in only:
        if config.get(key) not in (None, expected):
            raise ConfigError(f"{key} is {config[key]!r} in {str(file)!r}: supported is {expected!r}")


def _window(config: dict[str, Any], architecture: str) -> int:
    """The sliding window of all layers, 0 if it reaches over the whole context. Raises ConfigError if layers differ."""
    window = 0 if architecture == "llama" else int(config["sliding_window"] or 0)
    if window < 0:
        raise ConfigError(f"sliding_window is {window}: it must be a number of tokens, or null")
    if window == 0 or window >= int(config["max_position_embeddings"]):
        return 0
    if architecture == "mistral":
        return window
    windowed = bool(config.get("use_sliding_window"))
    kinds = _layer_kinds(config, windowed)
    if kinds == {"full_attention"}:
        return 0
    if kinds != {"sliding_attention"} or not windowed:
        raise ConfigError(
            f"use_sliding_window is {windowed}, and the kinds of layers are {', '.join(sorted(kinds))}, by layer_types "
            "or max_window_layers: supported is one sliding window for all layers, or none"
        )
    return window


def _layer_kinds(config: dict[str, Any], windowed: bool) -> set[str]:
    types = config.get("layer_types")
    if types is not None:
        return {str(each) for each in types}
    full = int(config["max_window_layers"]) if windowed else int(config["num_hidden_layers"])
    layers = range(int(config["num_hidden_layers"]))
    return {"full_attention" if layer < full else "sliding_attention" for layer in layers}


def _eos_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json knows the chat's end of turn, config.json often only the end of text: take both."""
    generation = path / "generation_config.json"
    found: set[int] = set()
    for source in (config, read_json(generation) if generation.is_file() else {}):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [int(value)])
    return tuple(sorted(found))


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of an HF directory. Raises ConfigError when there are none."""
    homes = weight_map(path)
    files = [path / name for name in sorted(set(homes.values()))] if homes else sorted(path.glob("*.safetensors"))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        detail = f"{missing[0]} is missing" if missing else "there is no *.safetensors file in it"
        raise ConfigError(f"model {str(path)!r} cannot be loaded: {detail}")
    return files


def weight_map(path: Path) -> dict[str, str]:
    """The file's name for each tensor, of a model that is kept in several; else empty."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return {}
    homes = read_json(index).get("weight_map", {})
    if not isinstance(homes, dict) or not all(isinstance(name, str) for name in homes.values()):
        raise ConfigError(f"{str(index)!r} has no weight_map of names")
    if any(Path(name).name != name for name in homes.values()):
        raise ConfigError(f"{str(index)!r} names files outside its folder")
    return homes


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
