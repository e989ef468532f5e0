"""The shape of a model in a GGUF file, and what its tensors are called there."""

from pathlib import Path

import numpy as np

from tandem.core.errors import ConfigError
from tandem.engine.gguf_file import Header, read_header
from tandem.engine.identity import weights_id
from tandem.engine.rope import yarn_attention_factor
from tandem.engine.shape import ModelShape, RopeScaling, checked

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Names in the files. Mistral's models are called llama there."""
PERMUTED = ("llama",)
"""Architectures whose q and k have the two halves of each head interleaved: see `tandem.engine.weights.unpermute`."""

OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
DIVISORS = "rope_freqs.weight"
_FLOAT32 = 0
_UNUSED = (("scaling.yarn_ext_factor", 1.0), ("scaling.yarn_attn_factor", 1.0), ("scaling.attn_factor", 1.0))


def stored_name(name: str) -> tuple[str, str]:
    """For a tensor's Hugging Face name its name in a GGUF file, and its kind inside a layer, such as attn_q."""
    module, _, suffix = name.rpartition(".")
    if module in OUTER:
        return f"{OUTER[module]}.{suffix}", ""
    layer, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{INNER[inner]}.{suffix}", INNER[inner]


def gguf_shape(path: Path) -> ModelShape:
    """The shape of the model in a GGUF file. Raises ConfigError when the engine cannot compute it."""
    header = read_header(path)
    architecture = header.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"model {str(path)!r} has architecture {architecture!r}; supported: {', '.join(ARCHITECTURES)}"
        )
    try:
        return checked(_shape(header, architecture, path))
    except ConfigError as error:
        raise ConfigError(f"model {str(path)!r}: {error}") from error


def _shape(header: Header, architecture: str, path: Path) -> ModelShape:
    _check_tensors(header, architecture)
    heads = header.integer(f"{architecture}.attention.head_count")
    hidden = header.integer(f"{architecture}.embedding_length")
    head_dim = header.integer(f"{architecture}.attention.key_length", hidden // max(heads, 1))
    context = header.integer(f"{architecture}.context_length")
    scaling = _scaling(header, architecture, path)
    if scaling is not None and scaling.kind == "yarn":
        context = max(context, int(scaling.factor * scaling.original_context))
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.integer(f"{architecture}.{key}", head_dim) != head_dim:
            raise ConfigError(f"{key} is not the heads' {head_dim}: that is not supported")
    eos = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    return ModelShape(
        name=header.text("general.name", path.stem),
        architecture=architecture,
        layers=header.integer(f"{architecture}.block_count"),
        hidden=hidden,
        intermediate=header.integer(f"{architecture}.feed_forward_length"),
        heads=heads,
        kv_heads=header.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=header.tensors["token_embd.weight"].shape[0],
        context=context,
        rope_theta=header.number(f"{architecture}.rope.freq_base", 10_000.0),
        eps=header.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in header.tensors,
        eos_ids=tuple(sorted({token for token in eos if isinstance(token, int)})),
        path=str(path),
        weights_id=weights_id([path], header.data_start),
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        window=_window(header, architecture, context),
        rope_scaling=scaling,
    )


def _check_tensors(header: Header, architecture: str) -> None:
    """Refuse what would load and then compute something else: tensors that no engine would look at."""
    if header.integer(f"{architecture}.expert_count", 0):
        raise ConfigError("it is a mixture of experts: only dense models are supported")
    if "token_embd.weight" not in header.tensors:
        raise ConfigError("there is no tensor token_embd.weight: it is damaged")
    known = {f"{kind}.weight" for kind in INNER.values()}
    if architecture != "qwen3":
        known -= {"attn_q_norm.weight", "attn_k_norm.weight"}
    if architecture == "qwen2":
        known |= {"attn_q.bias", "attn_k.bias", "attn_v.bias"}
    outer = {f"{kind}.weight" for kind in OUTER.values()} | {DIVISORS}
    for name in header.tensors:
        block, _, kind = name.removeprefix("blk.").partition(".")
        if name not in outer and not (name.startswith("blk.") and block.isdigit() and kind in known):
            raise ConfigError(f"tensor {name} is not part of the {architecture} that is supported")


def _window(header: Header, architecture: str, context: int) -> int:
    window = header.integer(f"{architecture}.attention.sliding_window", 0)
    layers_differ = f"{architecture}.attention.sliding_window_pattern" in header.metadata
    if window and (layers_differ or architecture != "llama"):
        raise ConfigError(
            f"attention.sliding_window is {window} for some layers: supported is one window for all, of a llama"
        )
    return window if window < context else 0


def _scaling(header: Header, architecture: str, path: Path) -> RopeScaling | None:
    key = f"{architecture}.rope.scaling."
    kind = header.text(f"{key}type", "none")
    factor = header.number(f"{key}factor", header.number(f"{architecture}.rope.scale_linear", 1.0))
    if DIVISORS in header.tensors:
        if kind != "none":
            raise ConfigError(f"rope scaling {kind!r} and {DIVISORS}, which divides as well: supported is one of them")
        return RopeScaling(kind="divisors", divisors=_divisors(header, architecture, path))
    if kind not in ("none", "linear", "yarn"):
        raise ConfigError(f"rope scaling {kind!r} is not supported: it can be none, linear, yarn or {DIVISORS}")
    if factor <= 0:
        raise ConfigError(f"rope.scaling.factor is {factor}: it must be above 0")
    if kind == "yarn":
        return _yarn(header, architecture, factor)
    return RopeScaling(kind="linear", factor=factor) if factor != 1 else None


def _yarn(header: Header, architecture: str, factor: float) -> RopeScaling:
    for key, expected in (*_UNUSED, ("scaling.yarn_log_multiplier", 0.0)):
        value = header.number(f"{architecture}.rope.{key}", expected)
        if value != expected:
            raise ConfigError(f"rope.{key} is {value}: supported is {expected}")
    key = f"{architecture}.rope.scaling."
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=header.integer(
            f"{key}original_context_length", header.integer(f"{architecture}.context_length")
        ),
        beta_fast=header.number(f"{key}yarn_beta_fast", 32.0),
        beta_slow=header.number(f"{key}yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor),
    )


def _divisors(header: Header, architecture: str, path: Path) -> tuple[float, ...]:
    """What Llama 3.1's scaling divides each frequency by: the files hold the numbers, not the formula."""
    info = header.tensors[DIVISORS]
    heads = max(header.integer(f"{architecture}.attention.head_count"), 1)
    default = header.integer(f"{architecture}.embedding_length") // heads
    count = header.integer(f"{architecture}.attention.key_length", default) // 2
    if info.kind != _FLOAT32 or info.shape != (count,):
        raise ConfigError(f"{DIVISORS} is {info.shape} of type {info.kind}: {count} numbers in float32 were expected")
    with path.open("rb") as file:
        file.seek(info.offset)
        found = np.frombuffer(file.read(4 * count), "<f4")
    if len(found) != count or not (found > 0).all():
        raise ConfigError(f"{DIVISORS} does not hold {count} numbers above 0: it is damaged")
    return tuple(float(each) for each in found)
