"""Logits of NaN or infinity: the request that has them fails and says so; no wrong token, and nobody else is hurt."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from cpu_models import CONTEXT, LAYERS, Stages, cut, in_float32, plan_of, random_shape, random_weights
from ragged_attention import RaggedAttention

from tandem.core.config import Group, Limits, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.plan import Row
from tandem.core.requests import Sampling, Work
from tandem.engine.cpu.build import ISAS, obstacle
from tandem.engine.flashinfer.engine import FlashInferEngine, pages_of
from tandem.engine.flashinfer.memory import DeviceMemory
from tandem.engine.flashinfer.stage import Stage
from tandem.engine.memory import PlainMemory
from tandem.engine.model import block_bytes
from tandem.engine.sampler import draw
from tandem.engine.shape import ModelShape
from tandem.engine.solo import generate
from tandem.engine.torch_engine import TorchEngine
from tandem.engine.weights import StageWeights
from tandem.ports import Engine, Sampled
from tandem.sim.client import Client
from tandem.sim.world import Cluster, World

VOCAB = 2_100
POISON = 50
"""A token whose embedding is NaN: so are the logits of all texts with it."""
WAYS = {
    "greedy": Sampling(),
    "drawn": Sampling(1.0, seed=3),
    "nucleus": Sampling(1.0, 0.9, 3, 40, 0.01),
    "penalties and logprobs": Sampling(0.7, repetition_penalty=1.2, presence_penalty=0.5, logprobs=3),
    "bias": Sampling(logit_bias=((3, 2.0),), logprobs=0),
}


def row_of(sampling: Sampling, tokens: tuple[int, ...] = (3, 4), page: int = 0) -> Row:
    return Row(Room(RequestId(1), 1), tokens, 0, (PageId(page),), True, sampling, tokens, 1)


def no_numbers() -> dict[str, torch.Tensor]:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1))
    logits[0, 7], logits[1, 1999], logits[2], logits[3] = math.nan, math.inf, -math.inf, math.nan
    return dict(zip(("one NaN", "one infinity", "nothing is possible", "all NaN"), logits, strict=True))


@pytest.mark.parametrize("width", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("wrong", no_numbers().values(), ids=no_numbers())
def test_nothing_is_drawn_from_them_and_neighbours_get_what_they_get_alone(
    wrong: torch.Tensor, way: Sampling, masked: bool, width: torch.dtype
) -> None:
    """Nor where a grammar lets only tokens follow whose logits are numbers."""
    right = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2)).to(width)
    logits = torch.stack([right[0], wrong.to(width), right[1]])
    allowed = torch.arange(VOCAB) % 100 == 3
    masks = {1: allowed, 2: allowed} if masked else {}
    got = draw(logits, [row_of(way)] * 3, masks)
    alone = [draw(right[:1], [row_of(way)]), draw(right[1:], [row_of(way)], {0: allowed} if masked else {})]
    assert got.tokens == (*alone[0].tokens, (), *alone[1].tokens)
    assert got.logprobs == alone[0].logprobs + alone[1].logprobs
    assert draw(logits[1:2], [row_of(way)], {0: allowed} if masked else {}) == Sampled(((),))


@pytest.fixture(scope="module")
def poisoned() -> tuple[ModelShape, StageWeights]:
    shape = random_shape()
    weights = random_weights(shape)
    assert weights.embedding is not None
    weights.embedding[POISON] = math.nan
    return shape, weights


def torch_stage(shape: ModelShape, weights: StageWeights, first: int = 0, last: int = LAYERS) -> Engine:
    layers = LayerId(first), LayerId(last)
    memory = PlainMemory(layers, 64, block_bytes(shape, "float32", 16))
    return TorchEngine(shape, in_float32(cut(weights, first, last)), memory, page_size=16)


def cpu_stage(shape: ModelShape, weights: StageWeights) -> Engine:
    if found := obstacle(shape, "bfloat16", 16):
        pytest.skip(found)
    return Stages(shape, weights, ISAS[-1]).engines[0]


def gpu_stage(shape: ModelShape, weights: StageWeights) -> Engine:
    """As far as a CPU runs it."""
    layers = LayerId(0), LayerId(LAYERS)
    memory = DeviceMemory(layers, 64, block_bytes(shape, "bfloat16", 16), torch.device("cpu"))
    stage = Stage(shape, weights, pages_of(memory, shape, 16))
    return FlashInferEngine(shape, stage, memory, RaggedAttention(shape), None, page_size=16)


@pytest.mark.parametrize("build", [torch_stage, cpu_stage, gpu_stage])
def test_every_engine_fails_one_row_and_goes_on(
    build: Callable[[ModelShape, StageWeights], Engine], poisoned: tuple[ModelShape, StageWeights]
) -> None:
    engine = build(*poisoned)
    rows = [row_of(Sampling(), tokens, page) for page, tokens in enumerate(((1, 2, 3), (4, POISON), (5, 6)))]
    for _ in range(2):
        got = engine.run(plan_of(rows), None, lambda _: None)
        alone = engine.run(plan_of([rows[0], rows[2]]), None, lambda _: None)
        assert isinstance(got, Sampled)
        assert isinstance(alone, Sampled)
        assert got.tokens == (alone.tokens[0], (), alone.tokens[1])


def test_generation_in_one_process_says_so(poisoned: tuple[ModelShape, StageWeights]) -> None:
    work = Work(Room(RequestId(1), 1), (1, POISON), 4, (), Sampling(), None)
    with pytest.raises(ConfigError, match="no numbers for token 0"):
        list(generate(torch_stage(*poisoned), work, page_size=16))


PAIR = {"p0": (RoleName.PREFILL, (2, 1)), "d0": (RoleName.DECODE, (1, 2))}
ALONE = {"c0": (RoleName.COLOCATED, (1, 2))}


@pytest.mark.parametrize("groups", [PAIR, ALONE], ids=["prefill and decode", "colocated"])
def test_in_a_cluster_the_request_alone_fails(
    groups: dict[str, tuple[RoleName, tuple[int, ...]]], poisoned: tuple[ModelShape, StageWeights]
) -> None:
    """One has the token in its prompt, one draws it and is fed it; what those beside them get changes in nothing."""

    def answers(*works: Work) -> dict[int, tuple[str | None, list[int]]]:
        made = tuple(Group(role, name, partition) for name, (role, partition) in groups.items())
        client = Client()
        limits = Limits(page_size=16, num_pages=40, context=CONTEXT, chunked_prefill_size=32)
        world = World(3, Cluster(made, limits), partial(engine, poisoned), client)
        for work in works:
            world.router.submit(work, tuple(groups))
        world.run()
        world.check_at_rest()
        return {int(room.rid): (answer.code, answer.tokens) for room, answer in client.answers.items()}

    prompts = {1: (1, 2, 3), 2: (*range(60), POISON, 7), 3: (7, 8), 4: tuple(range(51, 91))}
    biases = {3: ((POISON, 1000.0),)}
    works = [
        Work(Room(RequestId(number), 1), prompt, 9, (), Sampling(logit_bias=biases.get(number, ())), None)
        for number, prompt in prompts.items()
    ]
    found = answers(*works)
    assert found[2] == ("not_a_number", [])
    assert found[3] == ("not_a_number", [POISON])
    assert {number: found[number] for number in (1, 4)} == answers(works[0], works[3])
    assert found[1][0] == found[4][0] == "length"


def engine(model: tuple[ModelShape, StageWeights], group: Group, rank: RankId, limits: Limits) -> Engine:
    assert limits.num_pages <= 64
    return torch_stage(*model, *group.layers(rank))
