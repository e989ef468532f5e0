"""The GPU engine, as far as a CPU can run it: what FlashInfer is told, padding of graphs, host pages, the layers.

Its kernels are stood in for by `RaggedAttention`, which reads exactly what they are told. tests/gpu has the real ones.
"""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ragged_attention import RaggedAttention
from random_models import LAYERS, VOCAB, logits_of, random_model

from tandem.core.errors import ConfigError
from tandem.core.ids import NO_SLOT, LayerId, PageId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, pages_for
from tandem.engine.flashinfer.build import obstacle
from tandem.engine.flashinfer.engine import FlashInferEngine
from tandem.engine.flashinfer.graphs import DecodeGraphs
from tandem.engine.flashinfer.memory import DeviceMemory, PinnedPages
from tandem.engine.flashinfer.planning import GRAPH_ROWS, graph_rows, is_decode, lay_out, padded
from tandem.engine.flashinfer.stage import Stage
from tandem.engine.load import build_engine
from tandem.engine.model import block_bytes, read_shape
from tandem.engine.weights import load_weights
from tandem.ports import Sampled

CPU = torch.device("cpu")
PAGE_SIZE = 4
NUM_PAGES = 120


def row(start: int, count: int, pages: tuple[int, ...], samples: bool = True) -> Row:
    tokens = tuple(range(start, start + count))
    return Row(Room(RequestId(1), 1), tokens, start, tuple(map(PageId, pages)), samples, Sampling())


@st.composite
def row_lists(draw: st.DrawFn, page_size: int) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 20)), draw(st.integers(1, 9))
        needed = pages_for(start + count, page_size)
        pages = draw(st.lists(st.integers(0, 99), min_size=needed, max_size=needed + 2, unique=True))
        rows.append(row(start, count, tuple(pages), draw(st.booleans())))
    return rows


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([1, 4, 16]).flatmap(lambda size: st.tuples(st.just(size), row_lists(size))))
def test_every_token_is_where_the_kernels_are_told_to_look(case: tuple[int, list[Row]]):
    page_size, rows = case
    ragged = lay_out(rows, page_size)
    assert ragged.rows == len(rows)
    assert ragged.tokens.tolist() == [token for row in rows for token in row.tokens]
    for index, one in enumerate(rows):
        first, last = ragged.qo_indptr[index : index + 2].tolist()
        begin, end = ragged.kv_indptr[index : index + 2].tolist()
        pages = ragged.kv_indices[begin:end].tolist()
        length = (len(pages) - 1) * page_size + int(ragged.last_page_len[index])
        assert 1 <= int(ragged.last_page_len[index]) <= page_size
        assert length == one.end, "the kernels see all tokens so far, and none that is not there yet"
        assert pages == list(one.pages[: len(pages)])
        assert ragged.positions[first:last].tolist() == list(range(one.start, one.end))
        cells = [pages[at // page_size] * page_size + at % page_size for at in range(length)]
        assert ragged.cells[first:last].tolist() == cells[one.start :]
    ends = (ragged.qo_indptr[1:].long() - 1).tolist()
    assert ragged.sampled.tolist() == [end for end, one in zip(ends, rows, strict=True) if one.samples]


def test_a_page_table_that_is_too_short_is_noticed():
    with pytest.raises(IndexError):
        lay_out([row(0, 5, (3,))], PAGE_SIZE)


def test_each_plan_takes_the_next_larger_graph():
    assert [graph_rows(rows) for rows in (1, 3, 8, 9, 128, 129)] == [1, 4, 8, 16, 128, None]
    assert list(GRAPH_ROWS) == sorted(GRAPH_ROWS)


def test_only_single_tokens_that_are_sampled_from_take_a_graph():
    assert is_decode([row(4, 1, (0, 1)), row(0, 1, (2,))])
    assert not is_decode([row(4, 1, (0, 1)), row(0, 2, (2,))])
    assert not is_decode([row(4, 1, (0, 1), samples=False)])


def test_what_a_graph_is_padded_with_writes_nothing_of_its_own():
    rows = [row(4, 1, (7, 1)), row(9, 1, (2, 5, 3))]
    ragged = lay_out(padded(rows, 4), PAGE_SIZE)
    assert ragged.rows == 4
    assert sorted(set(ragged.cells.tolist())) == sorted(lay_out(rows, PAGE_SIZE).cells.tolist())
    assert padded(rows, 2) == rows


class Device:
    """A ring of stages of the engine on the CPU, in float32."""

    def __init__(self, path: str, cuts: tuple[int, ...]) -> None:
        self.shape = read_shape(path)
        self.stages = [self._stage(LayerId(first), LayerId(last)) for first, last in pairwise(cuts)]
        self.layers: list[int] = []

    def _stage(self, first: LayerId, last: LayerId) -> FlashInferEngine:
        shape = self.shape
        memory = DeviceMemory((first, last), NUM_PAGES, block_bytes(shape, "float32", PAGE_SIZE), CPU)
        pool = memory.pages.view(torch.float32).view(
            last - first, NUM_PAGES, 2, PAGE_SIZE, shape.kv_heads, shape.head_dim
        )
        pool.fill_(torch.nan)
        stage = Stage(shape, load_weights(shape, (first, last), torch.float32), pool)
        graphs = DecodeGraphs(stage, lambda rows, pages: RaggedAttention(shape), shape.context)
        return FlashInferEngine(shape, stage, memory, RaggedAttention(shape), graphs, page_size=PAGE_SIZE)

    def logits(self, rows: list[Row]) -> torch.Tensor:
        plan = Plan(Tick(0), NO_SLOT, tuple(rows), (), (), 0)
        passed: memoryview | None = None
        for stage in self.stages[:-1]:
            out = stage.run(plan, passed, self.layers.append)
            assert isinstance(out, memoryview)
            assert out.nbytes == plan.tokens * stage.hidden_bytes
            passed = memoryview(bytes(out))
        return self.stages[-1].logits(plan, passed)


ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 9}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    architecture, changes = ARCHITECTURES[request.param]
    path: Path = tmp_path_factory.mktemp(architecture)
    model = random_model(architecture, **changes)
    model.save_pretrained(path)
    return str(path), model


@pytest.mark.parametrize("cuts", [(0, LAYERS), (0, 1, LAYERS)])
def test_any_mix_of_chunks_and_decode_steps_gives_the_logits_of_transformers(
    cuts: tuple[int, ...], saved: tuple[str, Any], make_text: Any
):
    path, model = saved
    dice = random.Random(3)
    device = Device(path, cuts)
    numbers = dice.sample(range(NUM_PAGES), NUM_PAGES)
    texts = []
    for length in (70, 23, 9):
        tokens = [dice.randrange(VOCAB) for _ in range(length)]
        texts.append(make_text(tokens, [numbers.pop() for _ in range(pages_for(length, PAGE_SIZE))]))
    expected = [logits_of(model, text.tokens) for text in texts]
    graphed = 0
    while active := [index for index, text in enumerate(texts) if text.cached < len(text.tokens)]:
        counts = [1] * len(active) if dice.random() < 0.5 else [dice.choice([1, 3, 17]) for _ in active]
        rows = []
        for index, count in zip(active, counts, strict=True):
            part = texts[index].row(count, PAGE_SIZE)
            texts[index].cached = part.end
            rows.append(Row(part.room, part.tokens, part.start, part.pages, True, part.sampling))
        graphed += is_decode(rows)
        for index, one, found in zip(active, rows, device.logits(rows), strict=True):
            torch.testing.assert_close(found, expected[index][one.end - 1], rtol=1e-3, atol=1e-3)
    assert graphed, "else no graph was used"


def test_each_layer_is_told_once_and_in_order(saved: tuple[str, Any]):
    path, _ = saved
    device = Device(path, (0, 2, LAYERS))
    for tick, rows in enumerate(([row(0, 6, (5, 3))], [row(6, 1, (5, 3))])):
        device.logits(rows)
        assert device.layers == [0, 1] * (tick + 1)


def test_the_last_stage_draws_a_token_of_each_row_that_samples(saved: tuple[str, Any]):
    path, _ = saved
    (stage,) = Device(path, (0, LAYERS)).stages
    rows = [row(0, 6, (5, 3)), row(0, 3, (8,), samples=False)]
    plan = Plan(Tick(0), NO_SLOT, tuple(rows), (), (), 0)
    sampled = stage.run(plan, None, lambda _: None)
    assert isinstance(sampled, Sampled)
    assert [len(tokens) for tokens in sampled.tokens] == [1]
    unsampled = Plan(Tick(1), NO_SLOT, (rows[1],), (), (), 0)
    assert stage.run(unsampled, None, lambda _: None) == Sampled()


def test_pages_go_to_host_memory_and_come_back():
    memory = DeviceMemory((LayerId(2), LayerId(4)), 3, 16, CPU)
    host = PinnedPages(memory, 2)
    memory.pages[0, 1], memory.pages[1, 1] = 7, 8
    host.save((PageId(1),), (PageId(0),))
    memory.pages.zero_()
    host.load((PageId(0),), (PageId(2),))
    assert bytes(memory.block(LayerId(2), PageId(2))) == b"\x07" * 16
    assert bytes(memory.block(LayerId(3), PageId(2))) == b"\x08" * 16
    assert bytes(memory.block(LayerId(3), PageId(1))) == bytes(16)
    with pytest.raises(IndexError, match="no host page 2"):
        host.save((PageId(1),), (PageId(2),))
    with pytest.raises(IndexError, match="no block"):
        memory.block(LayerId(4), PageId(0))


def test_known_answers_lie_right_behind_the_pages():
    memory = DeviceMemory((LayerId(0), LayerId(1)), 2, 64, CPU)
    memory.tail[64:69] = b"hello"
    assert memory.tail[62:70] == b"\0\0hello\0"
    assert len(memory.tail) > 0
    behind = memory.region.base + memory.region.bytes + 64
    assert behind == memory.pages.data_ptr() + memory.region.bytes + 64


def test_what_stands_in_its_way_is_told(saved: tuple[str, Any]):
    path, _ = saved
    shape = read_shape(path)
    assert "heads have" in obstacle(shape, "bfloat16", 16)
    assert "--dtype is float32" in obstacle(shape, "float32", 16)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="--engine is flashinfer, but the model's heads have"):
            build_engine(shape, (LayerId(0), LayerId(1)), page_size=16, num_pages=1, engine="flashinfer")
