"""Writes goldens.json: what transformers generates greedily, in float32, from the bundled model's weights.

    python tests/model/make_goldens.py

The weights are read with the `gguf` package and put in order here, not by the code under test.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from gguf import GGUFReader, dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.engine.model import bundled_model_path, read_shape
from tandem.engine.shape import ModelShape
from tandem.engine.tokens import load_tokenizer

GOLDENS = Path(__file__).with_name("goldens.json")
TOKENS = 16
LENGTHS = (1, 2, 5, 15, 16, 17, 40, 63, 64, 65, 100, 150, 200, 255, 257, 300, 512, 513, 1025, 3000)
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "  Explain, in one sentence, why the sky is blue.\n",
    "Übersetze ins Englische: Der Hund schläft. 日本語 🎉 12345",
    "def fibonacci(n):",
)
SALAD = (
    "the a river stone bridge walked slowly over under morning light people market said that there was 1984 blue green "
    "and or but because never always data engine cache page token layer, memory. It He She They house garden, built in "
    "winter, summer city small large king queen story began when found lost water fire wind (see below) however, thus"
)

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
}


def hf_config(shape: ModelShape, **extra: Any) -> LlamaConfig:
    """The same dimensions in transformers' words."""
    return LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied,
        **extra,
    )


def reference_model() -> LlamaForCausalLM:
    """transformers' Llama in float32 with the bundled model's weights."""
    shape = read_shape(str(bundled_model_path()))
    state = {}
    for tensor in GGUFReader(bundled_model_path()).tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        *layer, kind, _ = tensor.name.split(".")
        if kind in ("attn_q", "attn_k"):
            # Row 2i + j of a head in the file is row i of its half j.
            rows = torch.arange(len(weight)).view(-1, shape.head_dim)
            weight = weight[torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1).view(-1)]
        state[".".join(["model", *(["layers", layer[1]] if layer else []), NAMES[kind], "weight"])] = weight
    model = LlamaForCausalLM(hf_config(shape, attn_implementation="sdpa")).float().eval()
    left = model.load_state_dict(state, strict=False)
    assert left.missing_keys == ["lm_head.weight"], left
    assert not left.unexpected_keys, left
    return model


def prompts() -> list[list[int]]:
    """Questions in the chat template, and word salad of every length that matters to pages and chunks."""
    tokenizer = load_tokenizer(str(bundled_model_path()))
    words = SALAD.split()
    found = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
    for length in LENGTHS:
        dice = random.Random(length)
        salad = " ".join(dice.choice(words) for _ in range(length + 5))
        found.append(tokenizer.encode_text(salad)[:length])
    return found


@torch.inference_mode()
def continue_greedily(model: LlamaForCausalLM, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """`count` tokens, and how far each one's logit was above the second best."""
    tokens, gaps, cache = [], [], None
    ids = torch.tensor([prompt])
    for _ in range(count):
        out = model(ids, cache=cache, use_cache=True, logits_to_keep=1)
        cache = out.cache
        best = out.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        ids = best.indices[:1][None]
    return tokens, gaps


def main() -> None:
    """Takes about a minute."""
    torch.set_num_threads(2)
    started = time.monotonic()
    model = reference_model()
    goldens = []
    for prompt in prompts():
        tokens, gaps = continue_greedily(model, prompt, TOKENS)
        goldens.append({"prompt": prompt, "tokens": tokens, "gaps": gaps})
    text = ",\n".join(json.dumps(golden) for golden in goldens)
    GOLDENS.write_text(f"[\n{text}\n]\n")
    print(f"{len(goldens)} prompts in {time.monotonic() - started:.0f} s: {GOLDENS}")


if __name__ == "__main__":
    main()
