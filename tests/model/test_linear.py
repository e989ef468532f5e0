"""Packed weights compute what the plain ones do, and an engine that is built has no others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import LAYERS, random_model

from tandem.core.ids import LayerId
from tandem.engine.linear import linear, pack, pack_head, pack_layer
from tandem.engine.model import read_shape
from tandem.engine.weights import StageWeights, load_stage, load_weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 300])
@pytest.mark.parametrize(("outer", "inner"), [(48, 64), (301, 96), (64, 7)])
def test_a_packed_weight_computes_the_same(dtype: torch.dtype, rows: int, outer: int, inner: int) -> None:
    dice = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(size, generator=dice).to(dtype) for size in ((rows, inner), (outer, inner), outer))
    packed = pack(weight)
    near = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 0.05}
    for each in (None, bias):
        found = linear(x, packed, each)
        assert (found.dtype, tuple(found.shape)) == (dtype, (rows, outer))
        assert torch.allclose(found, torch.nn.functional.linear(x, weight, each), **near)
        assert torch.equal(linear(x, weight, each), torch.nn.functional.linear(x, weight, each))


def test_where_onednn_does_not_know_a_dtype_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 8)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack(weight) is weight


def test_a_built_engine_computes_with_packed_weights(tmp_path: Path, make_ring: Callable[..., Any]) -> None:
    """The embedding of a tied model stays plain: tokens are looked up in it."""
    random_model("qwen2", tie_word_embeddings=True).save_pretrained(tmp_path)
    ring = make_ring(str(tmp_path), (0, LAYERS), page_size=4, num_pages=9, dtype="float32")
    weights = ring.stages[0]._weights
    known = pack(torch.zeros(8, 8)).is_mkldnn
    for layer in weights.layers:
        assert [each.is_mkldnn for each in (layer.qkv, layer.attn_out, layer.gate_up, layer.down)] == [known] * 4
        assert not layer.attn_norm.is_mkldnn
        assert not layer.qkv_bias.is_mkldnn
    assert (weights.head.is_mkldnn, weights.embedding.is_mkldnn) == (known, False)


def test_each_layer_is_finished_before_the_next_is_loaded(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path)
    heard: list[int] = []
    finished: list[int] = []

    def finish(layer: Any) -> Any:
        finished.append(len(heard))
        return pack_layer(layer)

    shape = read_shape(str(tmp_path))
    everything = LayerId(0), LayerId(LAYERS)
    layers, ends = load_stage(shape, everything, torch.float32, finish, lambda done, total: heard.append(done))
    whole = StageWeights(layers, *ends)
    assert finished == [1 + 9 * (layer + 1) for layer in range(LAYERS)]
    middle = load_weights(shape, (LayerId(1), LayerId(2)), torch.float32)
    assert pack_head(middle) is middle
    assert pack_head(whole).head is not whole.head
