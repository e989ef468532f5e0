"""The CPU engine: each build gives a sequence the same bits however it is computed, and close to what float32 gives."""

import functools
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cpu_models import (
    LAYERS,
    Stages,
    Text,
    all_logits,
    cut,
    in_float32,
    packed,
    plan_of,
    random_sequences,
    random_shape,
    random_weights,
    torch_engine,
)
from random_models import VOCAB, logits_of, random_model

from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.plan import Row
from tandem.core.requests import Sampling, Work, pages_for
from tandem.engine.cpu.build import HEAD_DIMS, ISAS, PAGE_SIZES, BuildError, Isa, isas_of_this_machine, obstacle
from tandem.engine.cpu.cores import Place
from tandem.engine.cpu.engine import CpuEngine
from tandem.engine.load import build_engine, choose
from tandem.engine.memory import PlainMemory
from tandem.engine.model import block_bytes, bundled_model_path, read_shape
from tandem.engine.shape import SUPPORTED, ModelShape, RopeScaling
from tandem.engine.solo import generate
from tandem.engine.weights import StageWeights, load_weights
from tandem.ports import Engine
from tandem.sim.client import Client
from tandem.sim.world import Cluster, World


def builds() -> list[Any]:
    """One test parameter per instruction set; those that this machine lacks are skipped by name."""
    try:
        here = isas_of_this_machine()
    except BuildError:
        here = []
    return [
        pytest.param(isa, id=isa.name, marks=() if isa in here else pytest.mark.skip(f"this CPU has no {isa.name}"))
        for isa in ISAS
    ]


@pytest.fixture(scope="module", autouse=True)
def _a_compiler() -> None:
    if found := obstacle(random_shape(), "bfloat16", 16):
        pytest.skip(found)


each_build = pytest.mark.parametrize("isa", builds())


# the same bits


VARIANTS: list[dict[str, Any]] = [
    {},
    {"head_dim": 128, "group": 8, "kv_heads": 1, "qkv_bias": True},
    {"head_dim": 96, "group": 5, "qk_norm": True},
    {"head_dim": 64, "group": 1, "window": 50},
    {"head_dim": 128, "group": 2, "window": 7, "qkv_bias": True, "qk_norm": True},
    {"head_dim": 96, "group": 7, "kv_heads": 1, "intermediate": 208},
]


@each_build
@pytest.mark.parametrize("seed", range(len(VARIANTS)))
def test_no_batch_chunk_page_table_thread_or_cut_changes_a_bit(seed: int, isa: Isa) -> None:
    dice = random.Random(seed)
    shape = random_shape(**VARIANTS[seed])
    weights = random_weights(shape, seed)
    lengths = [dice.randrange(1, 30), dice.randrange(60, 140), dice.randrange(60, 140)]
    page_size = dice.choice(PAGE_SIZES)
    texts = random_sequences(dice, lengths, page_size, 64)
    wanted = [one_by_one(Stages(shape, weights, isa), text.tokens) for text in texts]
    cuts = sorted(dice.sample(range(1, LAYERS), dice.randrange(LAYERS)))
    stages = Stages(shape, weights, isa, cuts=cuts, page_size=page_size, threads=dice.randrange(1, 4))
    while any(text.left for text in texts):
        running = [text for text in texts if text.left and dice.random() < 0.7]
        rows = [text.row(dice.choice((1, 1, 2, 13, 50)), page_size) for text in running]
        if rows:
            places = [(texts.index(text), text.cached - 1) for text in running]
            expected = torch.stack([wanted[number][at] for number, at in places])
            assert torch.equal(stages.logits(rows), expected), f"{VARIANTS[seed]}, {places}, cuts {cuts}"


def one_by_one(stages: Stages, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocab], each token a plan of its own."""
    text = Text(tokens, range(pages_for(len(tokens), 16)))
    return torch.cat([stages.logits([text.row(1, 16)]) for _ in tokens])


@each_build
def test_no_bit_changes_when_cores_come_and_go_between_layers(
    isa: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))
    dice = random.Random(1)
    shape = random_shape(qk_norm=True)
    weights, cuts = random_weights(shape), [LAYERS - 1]
    alone, beside = (
        Stages(shape, weights, isa, cuts=cuts, threads=threads, place=place).engines[0]
        for threads, place in ((1, None), (4, Place(str(tmp_path))))
    )
    others = [Place(str(tmp_path)) for _ in range(3)]
    seen = set()

    def one_comes_or_goes(layer: LayerId) -> None:
        dice.choice(others).computes(dice.random() < 0.5)
        seen.add(beside.threads)

    (text,) = random_sequences(dice, [120], 16, 64)
    for _ in range(30):
        plan = plan_of([text.row(4, 16)])
        wanted = alone.run(plan, None, lambda _: None)
        assert isinstance(wanted, memoryview)
        assert beside.run(plan, None, one_comes_or_goes) == wanted
    assert seen == {1, 2, 4}


@each_build
def test_a_wrong_bit_in_the_cache_changes_the_logits(isa: Isa) -> None:
    """The comparisons above can fail."""
    shape = random_shape()
    stages = Stages(shape, random_weights(shape), isa)
    text = Text(range(40), (3, 2, 1))
    stages.logits([text.row(39, 16)])
    last = text.row(1, 16)
    right = stages.logits([last])
    assert torch.equal(stages.logits([last]), right)
    block = np.frombuffer(stages.engines[0].memory.block(LayerId(1), PageId(3)), np.uint16)
    block ^= 1 << 15
    assert not torch.equal(stages.logits([last]), right)


@each_build
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_group_and_page_size_gives_the_same_bits(head_dim: int, isa: Isa) -> None:
    for group in range(1, 9):
        shape = random_shape(head_dim, group, 1 + group % 2)
        weights = random_weights(shape)
        found = []
        for page_size, chunks in zip(PAGE_SIZES, ((70, 1), (1, 40, 30), (33, 37, 1)), strict=True):
            stages = Stages(shape, weights, isa, page_size=page_size)
            text = Text(range(71), range(pages_for(71, page_size), 0, -1))
            found.append([stages.logits([text.row(count, page_size)]) for count in chunks][-1])
        assert torch.equal(found[0], found[1]), (head_dim, group)
        assert torch.equal(found[0], found[2]), (head_dim, group)


# close to float32


@each_build
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_size_and_group_is_as_close_to_float32_as_torch_is(head_dim: int, isa: Isa) -> None:
    for group in range(1, 9):
        shape = random_shape(head_dim, group, 1 + group % 2)
        check_closeness(shape, isa, f"{head_dim}, {group}")


@each_build
@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": True, "architecture": "qwen2"},
        {"qk_norm": True, "architecture": "qwen3"},
        {"window": 20, "architecture": "mistral"},
        {"rope_scaling": RopeScaling(kind="llama3", factor=8, high_freq_factor=4, original_context=64)},
        {"rope_scaling": RopeScaling(kind="yarn", factor=4, original_context=128, attention_factor=1.14)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_architecture_is_as_close_to_float32_as_torch_is(changes: dict[str, Any], isa: Isa) -> None:
    check_closeness(random_shape(**changes), isa, str(changes))


def check_closeness(shape: ModelShape, isa: Isa, what: str) -> None:
    tokens, exact, yardstick = references(shape)
    ours = all_logits(Stages(shape, random_weights(shape), isa).engines[0], tokens)
    error = float((ours - exact).norm() / exact.norm())
    assert error < yardstick, f"{what}: ours {error:.4f}, torch in bfloat16 {yardstick:.4f}"
    assert yardstick < 0.05, "torch does not compute this model: it is no yardstick"


@functools.cache
def references(shape: ModelShape) -> tuple[list[int], torch.Tensor, float]:
    """A text, its logits in float32, and how far torch is from them in bfloat16."""
    weights = random_weights(shape)
    tokens = random.Random(3).choices(range(shape.vocab), k=90)
    exact = all_logits(torch_engine(shape, in_float32(weights)), tokens)
    theirs = all_logits(torch_engine(shape, weights), tokens)
    return tokens, exact, float((theirs - exact).norm() / exact.norm())


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_a_directory_of_transformers_computes_what_transformers_does(architecture: str, tmp_path: Path) -> None:
    window = {"sliding_window": 20} if architecture == "mistral" else {}
    model = random_model(architecture, head_dim=64, **window).bfloat16().float()  # the same weights in both
    model.save_pretrained(tmp_path)
    shape = read_shape(str(tmp_path))
    layers = LayerId(0), LayerId(shape.layers)
    engines = [
        build_engine(shape, layers, dtype="bfloat16", page_size=16, num_pages=8, engine=name)
        for name in ("cpu", "torch")
    ]
    tokens = random.Random(2).choices(range(VOCAB), k=90)
    exact = logits_of(model, tokens)
    ours, yardstick = (float((all_logits(one, tokens) - exact).norm() / exact.norm()) for one in engines)
    assert ours < yardstick < 0.1


# the bundled model


@pytest.fixture(scope="module")
def smol() -> tuple[ModelShape, StageWeights]:
    shape = read_shape(str(bundled_model_path()))
    return shape, load_weights(shape, (LayerId(0), LayerId(shape.layers)), torch.bfloat16)


@pytest.fixture(scope="module")
def wholes(goldens: list[dict[str, Any]]) -> list[list[int]]:
    return [goldens[index]["prompt"] + goldens[index]["tokens"] for index in (0, 3, 13)]


@pytest.fixture(scope="module")
def exact(wholes: list[list[int]], reference: Any) -> torch.Tensor:
    """What transformers computes in float32."""
    with torch.inference_mode():
        return torch.cat([reference(torch.tensor([whole])).logits[0] for whole in wholes])


@pytest.fixture(scope="module")
def yardstick(wholes: list[list[int]], smol: tuple[ModelShape, StageWeights]) -> torch.Tensor:
    """What the torch engine computes in bfloat16, of the same weights."""
    return torch.cat([all_logits(torch_engine(*smol), whole) for whole in wholes])


@each_build
def test_the_bundled_model_is_as_close_to_transformers_as_torch_is(
    isa: Isa, smol: Any, wholes: list[list[int]], exact: torch.Tensor, yardstick: torch.Tensor
) -> None:
    engine = Stages(*smol, isa).engines[0]
    ours = torch.cat([all_logits(engine, whole) for whole in wholes])
    error, theirs = (float((each - exact).square().mean().sqrt()) for each in (ours, yardstick))
    same, their_same = (float((each.argmax(-1) == exact.argmax(-1)).float().mean()) for each in (ours, yardstick))
    print(f"{isa.name}: error {error:.3f}, torch {theirs:.3f}; same best token {same:.1%}, torch {their_same:.1%}")
    assert error < theirs
    assert same > their_same - 0.02


def test_any_cluster_gives_the_tokens_of_one_process(smol: Any, goldens: list[dict[str, Any]]) -> None:
    """Pages pass from stage to stage as bytes, whatever their layout: rings of several shapes, greedy and drawn."""
    shape, weights = smol
    isa = isas_of_this_machine()[0]
    asked = [Sampling(), Sampling(temperature=0.9, top_p=0.9, seed=4), Sampling()]
    prompts = [tuple(goldens[index]["prompt"]) for index in (0, 12, 13)]
    works = [
        Work(Room(RequestId(number), 1), prompt, 6, (), sampling, None)
        for number, (prompt, sampling) in enumerate(zip(prompts, asked, strict=True))
    ]
    alone = Stages(shape, weights, isa, num_pages=40, threads=2).engines[0]
    wanted = [list(generate(alone, work, page_size=16)) for work in works]

    def engine(group: Group, rank: RankId, limits: Limits) -> Engine:
        layers = group.layers(rank)
        memory = PlainMemory(layers, limits.num_pages, block_bytes(shape, "bfloat16", limits.page_size))
        return CpuEngine(shape, packed(shape, cut(weights, *layers), isa), memory, page_size=limits.page_size)

    for prefill, decode, page_size, chunk in ((1, 1, 16, 512), (2, 3, 32, 50), (3, 2, 64, 17)):
        groups = (
            Group(RoleName.PREFILL, "p0", split_layers(shape.layers, prefill)),
            Group(RoleName.DECODE, "d0", split_layers(shape.layers, decode)),
        )
        limits = Limits(
            page_size=page_size, num_pages=pages_for(1024, page_size), context=shape.context, chunked_prefill_size=chunk
        )
        client = Client()
        world = World(7, Cluster(groups, limits), engine, client)
        for work in works:
            world.router.submit(work, ("p0", "d0"))
        world.run()
        client.check()
        world.check_at_rest()
        assert [client.answers[work.room].tokens for work in works] == wanted, (prefill, decode, page_size, chunk)


def test_it_is_what_auto_chooses_and_builds(goldens: list[dict[str, Any]]) -> None:
    shape = read_shape(str(bundled_model_path()))
    assert choose(shape, "auto", "auto", 16).name == "cpu"
    engine = build_engine(shape, (LayerId(0), LayerId(2)), page_size=16, num_pages=8, threads=2, shared=True)
    assert isinstance(engine, CpuEngine)
    assert engine.memory.memfd is not None
    assert engine.hidden_bytes == 4 * shape.hidden


# the port


def row(pages: Sequence[int], tokens: Sequence[int] = (17, 18)) -> Row:
    pages = tuple(PageId(page) for page in pages)
    return Row(Room(RequestId(1), 0), tuple(tokens), 0, pages, False, Sampling())


def small_engine(**changes: Any) -> CpuEngine:
    shape = random_shape(**changes)
    return Stages(shape, random_weights(shape), isas_of_this_machine()[0]).engines[0]


def test_layers_are_reported_in_order_once_their_pages_are_written() -> None:
    engine = small_engine()
    engine.memory.buffer[:] = bytes(len(engine.memory.buffer))
    seen: list[int] = []

    def layer_ran(layer: LayerId) -> None:
        written = [any(engine.memory.block(LayerId(each), PageId(2))) for each in range(LAYERS)]
        assert written == [each <= layer for each in range(LAYERS)]
        assert not any(engine.memory.block(layer, PageId(0)))
        seen.append(layer)

    engine.run(plan_of([row([2])]), None, layer_ran)
    assert seen == list(range(LAYERS))


def test_what_goes_wrong_while_layers_are_reported_is_raised() -> None:
    engine = small_engine()
    seen: list[int] = []

    def layer_ran(layer: LayerId) -> None:
        seen.append(layer)
        raise KeyError(layer)

    with pytest.raises(KeyError, match="0"):
        engine.run(plan_of([row([2])]), None, layer_ran)
    assert seen == [0]
    engine.run(plan_of([row([2])]), None, lambda _: None)


TOO_MANY = """
import pathlib, resource
from tandem.engine.cpu.build import isas_of_this_machine, native
from tandem.engine.cpu.cores import ALONE
native = native(isas_of_this_machine()[0])
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
print(native.open(200, *ALONE), bool(native.open(2, *ALONE)))
"""


def test_a_machine_without_more_threads_is_told_so_and_ends_nothing() -> None:
    """Some of them start, and end again."""
    told = subprocess.run([sys.executable, "-c", TOO_MANY], capture_output=True, text=True)
    assert (told.stdout, told.returncode) == ("None True\n", 0), told.stderr


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row([64]), "a page is not among the pool's 64"),
        (row([-1]), "a page is not among"),
        (row([]), "2 tokens do not fit 0 pages"),
        (row([1], range(17)), "17 tokens do not fit 1 pages"),
        (row([1], [101]), "a token is not in the vocabulary of 101"),
        (msgspec.structs.replace(row(range(40)), start=511), "513 tokens do not fit 40 pages and the context"),
    ],
)
def test_what_would_reach_foreign_memory_is_refused(wrong: Row, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        small_engine().run(plan_of([wrong]), None, lambda _: None)
