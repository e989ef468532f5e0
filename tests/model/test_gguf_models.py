"""GGUF files of every architecture against transformers: names, the order of rows, quantisations, scalings of rope."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from random_models import LAYERS, VOCAB, logits_of, random_model, write_gguf
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.engine import weights
from tandem.engine.model import read_shape
from tandem.engine.weights import load_weights

TOKENS = random.Random(1).choices(range(VOCAB), k=90)
YARN = {"rope_type": "yarn", "rope_theta": 3000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 3000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def last_logits(make_ring: Callable[..., Any], make_text: Any) -> Callable[..., torch.Tensor]:
    def compute(path: Path, cuts: tuple[int, ...] = (0, 2, LAYERS)) -> torch.Tensor:
        ring = make_ring(str(path), cuts, page_size=4, num_pages=23, dtype="float32")
        text = make_text(TOKENS, range(22, -1, -1))
        ring.step([text], [50])
        found: torch.Tensor = ring.logits([text.row(len(TOKENS), 4)])[0]
        return found

    return compute


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_file_is_read_as_transformers_reads_it(
    architecture: str, tied: bool, tmp_path: Path, last_logits: Callable[..., torch.Tensor]
) -> None:
    model = random_model(
        architecture, tie_word_embeddings=tied, **({"head_dim": 32} if architecture == "qwen3" else {})
    )
    write_gguf(tmp_path / "model.gguf", model)
    theirs = load_gguf_checkpoint(str(tmp_path / "model.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    assert {name for name in theirs if not torch.equal(theirs[name], model.state_dict()[name])} == set()
    assert len(theirs) == len(model.state_dict()) - tied
    assert torch.allclose(last_logits(tmp_path / "model.gguf"), logits_of(model, TOKENS)[-1], atol=5e-3)


def test_a_mistral_is_a_llama_with_a_window(tmp_path: Path, last_logits: Callable[..., torch.Tensor]) -> None:
    model = random_model("mistral", sliding_window=9)
    write_gguf(tmp_path / "model.gguf", model, attention__sliding_window=9)
    assert read_shape(str(tmp_path / "model.gguf")).window == 9
    assert torch.allclose(last_logits(tmp_path / "model.gguf"), logits_of(model, TOKENS)[-1], atol=5e-3)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("rope", "metadata"),
    [
        (
            {"rope_type": "linear", "rope_theta": 3000.0, "factor": 4.0},
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        ),
        (
            YARN,
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64},
        ),
    ],
    ids=["linear", "yarn"],
)
def test_scaled_rope_is_read_from_the_metadata(
    architecture: str,
    rope: dict[str, Any],
    metadata: dict[str, Any],
    tmp_path: Path,
    last_logits: Callable[..., torch.Tensor],
) -> None:
    model = random_model(architecture, rope_parameters=rope)
    write_gguf(tmp_path / "model.gguf", model, **metadata)
    assert torch.allclose(last_logits(tmp_path / "model.gguf"), logits_of(model, TOKENS)[-1], atol=5e-3)


def test_llama3_is_a_tensor_of_divisors(tmp_path: Path, last_logits: Callable[..., torch.Tensor]) -> None:
    """What a converter writes: the plain frequencies divided by the scaled ones, as transformers has them."""
    model = random_model("llama", rope_parameters=LLAMA3)
    plain = random_model("llama").model.rotary_emb.inv_freq
    divisors = (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert divisors[0] == 1 < divisors[-1]
    write_gguf(tmp_path / "model.gguf", model, rope_freqs=divisors)
    assert torch.allclose(last_logits(tmp_path / "model.gguf"), logits_of(model, TOKENS)[-1], atol=5e-3)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q5_1, Kind.Q4_0])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_quantised_matrices_are_what_they_stand_for(
    architecture: str, kind: Kind, tmp_path: Path, last_logits: Callable[..., torch.Tensor]
) -> None:
    model = random_model(architecture)
    exact = logits_of(model, TOKENS)[-1]
    kept = write_gguf(tmp_path / "model.gguf", model, kind)
    model.load_state_dict(kept)
    assert not torch.allclose(logits_of(model, TOKENS)[-1], exact, atol=1e-5), "the quantisation changes nothing"
    assert torch.allclose(last_logits(tmp_path / "model.gguf"), logits_of(model, TOKENS)[-1], atol=5e-3)


def readable() -> list[Kind]:
    """All quantisations that the gguf package can turn into numbers."""
    found = []
    for kind, (_, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        with contextlib.suppress(NotImplementedError):
            gguf.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
            found.append(kind)
    return found


def test_the_kinds_that_people_use_are_among_those_that_are_read() -> None:
    names = {kind.name for kind in readable()}
    assert names >= {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4"}
    assert names >= {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"}


@pytest.mark.parametrize("kind", readable(), ids=lambda kind: kind.name)
def test_every_kind_is_read_as_the_gguf_package_reads_it(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing here writes most of them, so their bytes are random, with small scales. A few rows are read at a time."""
    monkeypatch.setattr(weights, "DEQUANTISED_ITEMS", 7 * 256 + 1)
    path = tmp_path / "model.gguf"
    model = random_model("qwen2", hidden_size=256, num_hidden_layers=1, intermediate_size=256)
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    dice = np.random.default_rng(3)

    def quantize(weight: np.ndarray, wanted: Kind) -> np.ndarray:
        if wanted != kind:
            return original(weight, wanted)
        return dice.integers(0, 60, (*weight.shape[:-1], weight.shape[-1] // per_block * block_bytes), np.uint8)

    original = gguf.quantize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "quantize", quantize)
        kept = write_gguf(path, model, kind)
    found = load_weights(read_shape(str(path)), (LayerId(0), LayerId(1)), torch.float32)
    assert torch.equal(found.layers[0].down, kept["model.layers.0.mlp.down_proj.weight"])
    assert torch.equal(found.layers[0].qkv[-128:], kept["model.layers.0.self_attn.v_proj.weight"])
    assert found.layers[0].down.abs().max() > 0


def test_what_cannot_be_dequantised_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, random_model("qwen2"))
    shape = read_shape(str(path))
    header = gguf.GGUFReader(path, "r+")
    tensor = next(each for each in header.tensors if each.name == "blk.1.ffn_up.weight")
    for kind, reason in (
        (Kind.Q8_1, r"blk\.1\.ffn_up\.weight .*Q8_1"),
        (77, r"blk\.1\.ffn_up\.weight .*unknown type 77"),
    ):
        tensor.field.parts[4][:] = int(kind)
        header.data.flush()
        with pytest.raises(ConfigError, match=reason):
            load_weights(shape, (LayerId(1), LayerId(2)), torch.float32)
        load_weights(shape, (LayerId(0), LayerId(1)), torch.float32)


@pytest.mark.parametrize(
    ("architecture", "metadata", "reason"),
    [
        ("qwen2", {"attention__sliding_window": 9}, "sliding_window is 9"),
        ("llama", {"rope__dimension_count": 8}, "rope.dimension_count"),
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, "factor is 0.0"),
        ("qwen3", {"rope__scaling__type": "yarn", "rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5"),
        ("llama", {"attention__head_count_kv": 3}, "4 heads cannot share 3"),
    ],
)
def test_metadata_that_means_another_model_is_refused(
    architecture: str, metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, random_model(architecture), **metadata)
    with pytest.raises(ConfigError, match=reason):
        read_shape(str(path))
