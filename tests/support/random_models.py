"""Small random models of every architecture: made by transformers, kept as a directory or as a GGUF file."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LAYERS, VOCAB, CONTEXT = 4, 301, 256
CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
DIMENSIONS = {
    "num_hidden_layers": LAYERS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 3000.0},
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 7,
}


def random_model(architecture: str, **changes: Any) -> PreTrainedModel:
    """In float32, with norms and biases that matter. `changes` are keys of its configuration."""
    torch.manual_seed(5)
    config, model = CLASSES[architecture]
    made = model(config(**DIMENSIONS | changes)).float().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.3)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
    return made


def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab] of a whole text at once."""
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **metadata: Any,
) -> dict[str, torch.Tensor]:
    """The model as llama.cpp's converter writes it, matrices of type `kind`. Returns what they now are.

    `metadata` are keys behind the architecture's name, with __ for a dot. A Mistral is a llama there.
    """
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    for key, value in metadata.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(f"{key}.weight", value)
        else:
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
            add(f"{architecture}.{key.replace('__', '.')}", value)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    kept = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        weight = parameter.numpy()
        used = kind if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(weight, used)
        kept[name] = torch.from_numpy(gguf.dequantize(data, used).copy())
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            data = interleaved(data, len(weight) // head_dim)
        writer.add_tensor(stored, data, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row i of the half j of a head becomes its row 2i + j."""
    order = np.arange(len(rows)).reshape(heads, 2, -1).transpose(0, 2, 1).reshape(-1)
    return np.ascontiguousarray(rows[order])
