"""FlashInfer's kernels, decode graphs and page-locked copies on a real GPU, against the same engine in plain torch.

They are skipped where there is no GPU. They have not been run on hardware yet: see docs/gpu.md.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ragged_attention import RaggedAttention
from random_models import LAYERS, VOCAB, random_model

from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, pages_for
from tandem.engine.flashinfer.engine import FlashInferEngine, on_gpu, pages_of
from tandem.engine.flashinfer.graphs import DecodeGraphs
from tandem.engine.flashinfer.memory import DeviceMemory, PinnedPages
from tandem.engine.flashinfer.stage import Stage
from tandem.engine.load import build_engine
from tandem.engine.model import block_bytes, bundled_model_path, read_shape
from tandem.engine.shape import ModelShape
from tandem.engine.weights import load_weights

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or importlib.util.find_spec("flashinfer") is None,
        reason="there is no CUDA device with FlashInfer here",
    ),
    pytest.mark.filterwarnings("default"),  # what FlashInfer and its compiler warn of is not ours to mend
    pytest.mark.timeout(1800),  # it compiles each kind of kernel when it is first used
]
GPU, CPU = "cuda", "cpu"
PAGE_SIZE, NUM_PAGES = 16, 256
CASES = {
    "grouped heads": ("llama", {"head_dim": 64}),
    "window": ("mistral", {"head_dim": 64, "sliding_window": 40}),
    "norms of q and k": ("qwen3", {"head_dim": 128}),
}


@pytest.fixture(scope="module", params=CASES)
def shape(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    architecture, changes = CASES[request.param]
    path: Path = tmp_path_factory.mktemp("model")
    random_model(architecture, max_position_embeddings=1024, **changes).save_pretrained(path)
    return read_shape(str(path))


def engine(shape: ModelShape, device: str, layers: tuple[int, int] = (0, LAYERS)) -> FlashInferEngine:
    """With FlashInfer on a GPU, with plain torch on the CPU, both in bfloat16."""
    first, last = LayerId(layers[0]), LayerId(layers[1])
    memory = DeviceMemory((first, last), NUM_PAGES, block_bytes(shape, "bfloat16", PAGE_SIZE), torch.device(device))
    weights = load_weights(shape, (first, last), torch.bfloat16)
    if device == GPU:
        return on_gpu(shape, weights, memory, page_size=PAGE_SIZE)
    stage = Stage(shape, weights, pages_of(memory, shape, PAGE_SIZE))
    graphs = DecodeGraphs(stage, lambda rows, pages: RaggedAttention(shape), shape.context)
    return FlashInferEngine(shape, stage, memory, RaggedAttention(shape), graphs, page_size=PAGE_SIZE)


def row(number: int, start: int, count: int) -> Row:
    """Each text has 40 pages of its own, in no order."""
    tokens = tuple((number * 97 + at * 31) % VOCAB for at in range(start, start + count))
    pages = tuple(
        PageId((number * 40 + index * 7 % 40) % NUM_PAGES) for index in range(pages_for(start + count, PAGE_SIZE))
    )
    return Row(Room(RequestId(number + 1), 1), tokens, start, pages, True, Sampling())


def plan(*rows: Row) -> Plan:
    return Plan(Tick(0), NO_SLOT, rows, (), (), 0)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05 * float(expected.abs().max()))


def test_chunks_of_any_length_at_any_place(shape: ModelShape):
    gpu, cpu = engine(shape, GPU), engine(shape, CPU)
    for rows in ([row(0, 0, 300), row(1, 0, 7)], [row(0, 300, 120), row(1, 7, 1), row(2, 0, 16)]):
        close(gpu.logits(plan(*rows)), cpu.logits(plan(*rows)))


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_decode_graphs_compute_what_single_kernels_do(rows: int, shape: ModelShape):
    """Captured at the first step, replayed at the others, with page tables that grow."""
    gpu, cpu = engine(shape, GPU), engine(shape, CPU)
    prompts = plan(*(row(number, 0, 14 + 9 * number) for number in range(rows)))
    gpu.logits(prompts)
    cpu.logits(prompts)
    for step in range(5):
        steps = plan(*(row(number, 14 + 9 * number + step, 1) for number in range(rows)))
        close(gpu.logits(steps), cpu.logits(steps))


def test_a_graphs_output_is_whole_when_the_next_one_runs(shape: ModelShape):
    """The fence: what was handed out is not written by the forward after."""
    stage = engine(shape, GPU, (0, 2))
    stage.run(plan(row(0, 0, 20), row(1, 0, 20)), None, lambda _: None)
    outputs = []
    for step in (20, 21):
        for number in (0, 1):
            out = stage.run(plan(row(number, step, 1)), None, lambda _: None)
            assert isinstance(out, memoryview)
            outputs.append(bytes(out))
    assert len(set(outputs)) == 4
    again = stage.run(plan(row(1, 21, 1)), None, lambda _: None)
    assert bytes(again) == outputs[-1]  # type: ignore[arg-type]


def test_layers_are_told_in_order_while_later_ones_compute(shape: ModelShape):
    told: list[int] = []
    engine(shape, GPU).run(plan(row(0, 0, 200)), None, told.append)
    assert told == list(range(LAYERS))


def test_pages_come_back_from_page_locked_memory_as_they_were(shape: ModelShape):
    gpu = engine(shape, GPU)
    host = PinnedPages(gpu.memory, 2)
    gpu.logits(plan(row(0, 0, 32)))
    page = row(0, 0, 32).pages[0]
    before = gpu.memory.pages[:, page].clone()
    host.save((page,), (PageId(1),))
    gpu.memory.pages[:, page] = 0
    host.load((PageId(1),), (PageId(200),))
    assert torch.equal(gpu.memory.pages[:, 200], before)


def test_the_bundled_model_speaks_as_the_torch_engine_does():
    """Greedy, until the first near tie: bfloat16 rounds otherwise there."""
    shape = read_shape(str(bundled_model_path()))
    layers = (LayerId(0), LayerId(shape.layers))
    build: Callable[..., FlashInferEngine] = build_engine  # type: ignore[assignment]
    gpu = build(shape, layers, page_size=PAGE_SIZE, num_pages=NUM_PAGES, engine="flashinfer")
    cpu = build(shape, layers, page_size=PAGE_SIZE, num_pages=NUM_PAGES, engine="torch", dtype="float32")
    prompt = row(0, 0, 100)
    found, expected = gpu.logits(plan(prompt))[0].float(), cpu.logits(plan(prompt))[0].float()
    best, second = expected.topk(2).values.tolist()
    assert int(found.argmax()) == int(expected.argmax()) or best - second < 0.5
    close(found, expected)
