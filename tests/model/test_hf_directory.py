"""Hugging Face directories: small random models, saved by transformers and read back without it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import tandem.engine.weights as weights
from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId
from tandem.core.plan import Row
from tandem.core.requests import pages_for
from tandem.engine.load import build_engine
from tandem.engine.model import fingerprint, read_shape
from tandem.engine.weights import load_weights

LAYERS = 4


def save(path: Path, *, tied: bool, shards: bool = False, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=48,
        intermediate_size=80,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=301,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 3000.0},
        tie_word_embeddings=tied,
        initializer_range=0.3,
        **changes,
    )
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.3)
    model.save_pretrained(path, max_shard_size="60KB" if shards else "1GB")
    return model


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, LlamaForCausalLM]:
    path = tmp_path_factory.mktemp("untied")
    return str(path), save(path, tied=False)


def logits_of(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [True, False])
@pytest.mark.parametrize("cuts", [(0, 4), (0, 1, 3, 4)])
def test_a_saved_model_computes_the_same(
    tied: bool, shards: bool, cuts: tuple[int, ...], tmp_path: Path, make_ring: Callable[..., Any], make_text: Any
) -> None:
    model = save(tmp_path, tied=tied, shards=shards)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == shards
    ring = make_ring(str(tmp_path), cuts, page_size=4, num_pages=9, dtype="float32")
    tokens = random.Random(1).choices(range(301), k=33)
    row = make_text(tokens, [3, 1, 4, 0, 5, 2, 6, 8, 7]).row(33, 4)
    assert torch.allclose(ring.logits([row])[0], logits_of(model, tokens)[-1], atol=1e-3)


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"num_key_value_heads": 6}, {"num_key_value_heads": 1}])
def test_other_head_shapes_compute_the_same(
    changes: dict[str, int], tmp_path: Path, make_ring: Callable[..., Any], make_text: Any
) -> None:
    config = {"num_key_value_heads": 2} | changes
    torch.manual_seed(6)
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=48, intermediate_size=80, num_attention_heads=6, vocab_size=99,
            initializer_range=0.3, max_position_embeddings=64, tie_word_embeddings=False, **config,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    ring = make_ring(str(tmp_path), (0, 2), page_size=3, num_pages=8, dtype="float32")
    tokens = list(range(20))
    text = make_text(tokens, range(8))
    for count in (9, 1, 1, 9):
        row = text.row(count, 3)
        text.cached = row.end
        row = Row(row.room, row.tokens, row.start, row.pages, True, row.sampling)
        assert torch.allclose(ring.logits([row])[0], logits_of(model, tokens[: row.end])[-1], atol=1e-4)


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_rows_over_any_page_table_is_right(
    page_size: int, seed: int, untied: tuple[str, LlamaForCausalLM], make_ring: Callable[..., Any], make_text: Any
) -> None:
    """Texts of very different length advance by random steps, so that plans mix fresh chunks, later chunks, decodes."""
    path, model = untied
    dice = random.Random(1000 * page_size + seed)
    lengths = [dice.choice([1, 2, 17, 40, 150, 200]) for _ in range(5)]
    numbers = dice.sample(range(700), 700)
    texts, expected = [], []
    for length in lengths:
        tokens = [dice.randrange(301) for _ in range(length)]
        texts.append(make_text(tokens, [numbers.pop() for _ in range(pages_for(length, page_size))]))
        expected.append(logits_of(model, tokens))
    ring = make_ring(path, dice.choice([(0, 4), (0, 2, 4)]), page_size=page_size, num_pages=700, dtype="float32")
    for stage in ring.stages:
        stage.memory.buffer[:] = b"\xff" * len(stage.memory.buffer)
    while active := [index for index, text in enumerate(texts) if text.cached < lengths[index]]:
        chosen = dice.sample(active, dice.randint(1, len(active)))
        rows = []
        for index in chosen:
            row = texts[index].row(dice.choice([1, 1, 2, 30]), page_size)
            texts[index].cached = row.end
            # Tables may be longer than needed; only some rows sample.
            samples = dice.random() < 0.8 or index == chosen[-1]
            rows.append(Row(row.room, row.tokens, row.start, texts[index].pages, samples, row.sampling))
        found = ring.logits(rows)
        sampling = [(index, row) for index, row in zip(chosen, rows, strict=True) if row.samples]
        for (index, row), logits in zip(sampling, found, strict=True):
            assert torch.allclose(logits, expected[index][row.end - 1], atol=2e-4), (index, row)


def test_a_table_that_is_too_short_is_our_bug(
    untied: tuple[str, LlamaForCausalLM], make_ring: Callable[..., Any], make_text: Any
) -> None:
    ring = make_ring(untied[0], (0, 4), page_size=4, num_pages=4, dtype="float32")
    row = make_text(range(5), [1, 2]).row(5, 4)
    with pytest.raises(IndexError):
        ring.logits([Row(row.room, row.tokens, row.start, (PageId(1),), True, row.sampling)])


def test_a_stage_loads_its_own_tensors_only(untied: tuple[str, LlamaForCausalLM]) -> None:
    shape = read_shape(untied[0])
    heard: list[tuple[int, int]] = []
    middle = load_weights(
        shape, (LayerId(1), LayerId(3)), torch.bfloat16, lambda done, total: heard.append((done, total))
    )
    assert heard == [(done, 18) for done in range(1, 19)]
    assert (middle.embedding, middle.norm, middle.head) == (None, None, None)
    assert [each.qkv.dtype for each in middle.layers] == [torch.bfloat16] * 2
    assert torch.equal(middle.layers[0].attn_out, untied[1].model.layers[1].self_attn.o_proj.weight.bfloat16())
    for layers, outer in (((0, 2), 1), ((2, 4), 2), ((0, 4), 3)):
        heard.clear()
        load_weights(shape, (LayerId(layers[0]), LayerId(layers[1])), torch.float32, lambda *each: heard.append(each))
        count = 9 * (layers[1] - layers[0]) + outer
        assert heard[-1] == (count, count)


def test_tied_models_share_one_table(tmp_path: Path) -> None:
    save(tmp_path, tied=True)
    shape = read_shape(str(tmp_path))
    whole = load_weights(shape, (LayerId(0), LayerId(4)), torch.float32)
    assert whole.head is whole.embedding
    last = load_weights(shape, (LayerId(3), LayerId(4)), torch.float32)
    assert last.embedding is None
    assert last.head is not None
    assert whole.head is not None
    assert torch.equal(last.head, whole.head)


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    save(tmp_path, tied=False)
    config = (tmp_path / "config.json").read_text()
    for old, new, reason in (
        ('"intermediate_size": 80', '"intermediate_size": 96', r"mlp\.gate_proj.*\(80, 48\).*\(96, 48\)"),
        ('"num_hidden_layers": 4', '"num_hidden_layers": 5', r"no tensor model\.layers\.4"),
    ):
        assert old in config
        (tmp_path / "config.json").write_text(config.replace(old, new))
        shape = read_shape(str(tmp_path))
        with pytest.raises(ConfigError, match=reason):
            load_weights(shape, (LayerId(0), LayerId(shape.layers)), torch.float32)


def test_different_weights_of_one_shape_have_different_fingerprints(tmp_path: Path) -> None:
    save(tmp_path, tied=True)
    before = fingerprint(read_shape(str(tmp_path)), "float32", 16, "a")
    save(tmp_path, tied=True)
    assert fingerprint(read_shape(str(tmp_path)), "float32", 16, "a") == before
    model = save(tmp_path, tied=True)
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight.mul_(1.01)
    model.save_pretrained(tmp_path)
    assert fingerprint(read_shape(str(tmp_path)), "float32", 16, "a") != before


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    save(tmp_path, tied=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        build_engine(read_shape(str(tmp_path)), (LayerId(0), LayerId(4)), page_size=4, num_pages=4)


def test_a_stage_touches_its_own_tensors_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are memory mapped: what is not asked for is not read. Files without any of its layers are not opened."""
    model = save(tmp_path, tied=False, shards=True)
    shape = read_shape(str(tmp_path))
    homes = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    needed = {name for name in homes if name.startswith("model.layers.1.")}
    opened, touched = set(), []

    class Watched:
        def __init__(self, file: Path, framework: str) -> None:
            opened.add(file.name)
            self._file = safe_open(file, framework=framework)

        def __enter__(self) -> "Watched":
            self._file.__enter__()
            return self

        def __exit__(self, *how: Any) -> None:
            self._file.__exit__(*how)

        def get_tensor(self, name: str) -> torch.Tensor:
            touched.append(name)
            return self._file.get_tensor(name)

    monkeypatch.setattr(weights, "safe_open", Watched)
    found = load_weights(shape, (LayerId(1), LayerId(2)), torch.float32)
    assert torch.equal(found.layers[0].down, model.model.layers[1].mlp.down_proj.weight)
    assert sorted(touched) == sorted(needed)
    assert opened == {homes[name] for name in needed}
    assert opened < set(homes.values())


def test_a_stage_does_not_need_the_files_of_others(tmp_path: Path) -> None:
    save(tmp_path, tied=True, shards=True)
    shape = read_shape(str(tmp_path))
    homes = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    mine = {home for name, home in homes.items() if name.startswith("model.layers.2.")}
    others = sorted(set(homes.values()) - mine)
    for name in others:
        (tmp_path / name).write_bytes(b"not yet here")
    load_weights(shape, (LayerId(2), LayerId(3)), torch.bfloat16)
    with pytest.raises(ConfigError, match=rf"{others[0]} cannot be read"):
        load_weights(shape, (LayerId(0), LayerId(4)), torch.bfloat16)


def test_quantised_safetensors_are_refused_by_name(tmp_path: Path) -> None:
    model = save(tmp_path, tied=True)
    state = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    name = "model.layers.3.mlp.up_proj.weight"
    state[name] = state[name].to(torch.float8_e4m3fn)
    save_file(state, tmp_path / "model.safetensors")
    shape = read_shape(str(tmp_path))
    load_weights(shape, (LayerId(0), LayerId(3)), torch.float32)
    with pytest.raises(ConfigError, match=rf"{name} .*float8_e4m3fn: quantised safetensors are not supported"):
        load_weights(shape, (LayerId(3), LayerId(4)), torch.float32)


def test_no_file_stays_mapped_though_weights_are_kept_in_the_dtype_that_they_have_there(tmp_path: Path) -> None:
    """Else what was read of it is this process's memory beside the packed copy, and who cuts it short ends the rank."""
    save(tmp_path, tied=False)
    kept = load_weights(read_shape(str(tmp_path)), (LayerId(0), LayerId(LAYERS)), torch.float32)
    assert kept.head is not None
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
