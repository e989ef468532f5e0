"""The bundled model as others read it, in bfloat16: the very weights that we compute with."""

import json
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, dequantize, quantize
from safetensors.torch import save_file

from tandem.core.ids import LayerId
from tandem.engine.shape import ModelShape
from tandem.engine.weights import DTYPES, load_weights

REWRITTEN = ("general.architecture", "general.file_type", "general.quantization_version")


def write_directory(shape: ModelShape, path: Path) -> None:
    """config.json and model.safetensors of a Llama with tied embeddings."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(_config(shape)))
    weights = load_weights(shape, (LayerId(0), LayerId(shape.layers)), DTYPES["bfloat16"])
    assert shape.tied, "there is no lm_head of its own"
    assert weights.embedding is not None, "these are all layers"
    assert weights.norm is not None, "these are all layers"
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for number, layer in enumerate(weights.layers):
        query, key, value = layer.qkv[:wide], layer.qkv[wide : wide + narrow], layer.qkv[wide + narrow :]
        gate, up = layer.gate_up.chunk(2)
        for name, tensor in (
            ("input_layernorm", layer.attn_norm),
            ("self_attn.q_proj", query),
            ("self_attn.k_proj", key),
            ("self_attn.v_proj", value),
            ("self_attn.o_proj", layer.attn_out),
            ("post_attention_layernorm", layer.ffn_norm),
            ("mlp.gate_proj", gate),
            ("mlp.up_proj", up),
            ("mlp.down_proj", layer.down),
        ):
            tensors[f"model.layers.{number}.{name}.weight"] = tensor.clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def write_gguf(source: Path, path: Path) -> None:
    """A GGUF file as another one, all matrices in bfloat16."""
    reader, bf16 = GGUFReader(source), GGMLQuantizationType.BF16
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in REWRITTEN:
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type)
        if data.ndim > 1:
            writer.add_tensor(tensor.name, quantize(data, bf16), raw_dtype=bf16)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(gguf: Path, path: Path) -> None:
    """The files of a tokenizer beside them, of a GGUF file. Raises ImportError without transformers."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(path)


def _config(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": None,
        "eos_token_id": list(shape.eos_ids),
        "torch_dtype": "bfloat16",
    }
