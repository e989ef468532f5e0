"""Engines and references that the tests of real models share: loaded once."""

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from tandem.core.config import Group, Limits
from tandem.core.ids import NO_SLOT, LayerId, PageId, RankId, RequestId, Room, Tick
from tandem.core.plan import Plan, Row
from tandem.core.requests import Sampling, pages_for
from tandem.engine.load import build_engine
from tandem.engine.memory import PlainMemory
from tandem.engine.model import block_bytes, bundled_model_path, read_shape
from tandem.engine.shape import ModelShape
from tandem.engine.torch_engine import TorchEngine
from tandem.engine.weights import DTYPES, StageWeights, load_weights
from tandem.ports import Engine, Sampled

THREADS = 1
"""Two are faster on an idle machine, but on a busy one each product waits for the thread that was put aside."""


class Text:
    """One sequence: tokens given so far, how many of them are in the cache, and its page table."""

    def __init__(self, tokens: Sequence[int], pages: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self.prompt_tokens = len(tokens)
        self.cached = 0
        self.pages = tuple(PageId(page) for page in pages)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    def row(self, count: int, page_size: int) -> Row:
        part = tuple(self.tokens[self.cached : self.cached + count])
        end = self.cached + len(part)
        pages = self.pages[: pages_for(end, page_size)]
        return Row(Room(RequestId(1), 0), part, self.cached, pages, end == len(self.tokens), Sampling())


class Ring:
    """Stages one after another in this process."""

    def __init__(self, model: str, cuts: Sequence[int], *, page_size: int, num_pages: int, dtype: str) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self.stages: list[TorchEngine] = []
        for first, last in pairwise(cuts):
            engine = build_engine(
                read_shape(model),
                (LayerId(first), LayerId(last)),
                page_size=page_size,
                num_pages=num_pages,
                dtype=dtype,
                engine="torch",
                threads=THREADS,
            )
            assert isinstance(engine, TorchEngine)
            self.stages.append(engine)

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """[rows that sample, vocab] in float32."""
        plan, passed = self._pass(rows)
        return self.stages[-1].logits(plan, passed).float()

    def step(self, texts: Sequence[Text], counts: Sequence[int]) -> None:
        """Compute so many tokens of each text; those that are complete get one more."""
        rows = [text.row(count, self.page_size) for text, count in zip(texts, counts, strict=True)]
        plan, passed = self._pass(rows)
        sampled = self.stages[-1].run(plan, passed, lambda _: None)
        assert isinstance(sampled, Sampled)
        for text, row in zip(texts, rows, strict=True):
            text.cached = row.end
        finished = [text for text, row in zip(texts, rows, strict=True) if row.samples]
        for text, tokens in zip(finished, sampled.tokens, strict=True):
            text.tokens += tokens

    def _pass(self, rows: Sequence[Row]) -> tuple[Plan, memoryview | None]:
        plan = Plan(Tick(0), NO_SLOT, tuple(rows), (), (), 0)
        passed = None
        for stage in self.stages[:-1]:
            passed = stage.run(plan, passed, lambda _: None)
            assert isinstance(passed, memoryview)
            assert passed.nbytes == plan.tokens * stage.hidden_bytes
            passed = memoryview(bytes(passed))  # what arrives is another buffer, and may be read-only
        return plan, passed


@pytest.fixture(scope="session")
def make_text() -> type[Text]:
    return Text


@pytest.fixture(scope="session")
def make_ring() -> Callable[..., Ring]:
    return Ring


@pytest.fixture(scope="session")
def smollm() -> Ring:
    """The bundled model in float32, all layers in one stage."""
    return Ring(str(bundled_model_path()), (0, 30), page_size=16, num_pages=700, dtype="float32")


class Stages:
    """Cuts one set of loaded weights into the stages of any ring."""

    def __init__(self) -> None:
        torch.set_num_threads(2)
        self.shape: ModelShape = read_shape(str(bundled_model_path()))
        self._whole = load_weights(self.shape, (0, self.shape.layers), DTYPES["float32"])  # type: ignore[arg-type]

    def engine(self, group: Group, rank: RankId, limits: Limits) -> Engine:
        first, last = group.layers(rank)
        ends = last == self.shape.layers
        weights = StageWeights(
            layers=self._whole.layers[first:last],
            embedding=self._whole.embedding if first == 0 else None,
            norm=self._whole.norm if ends else None,
            head=self._whole.head if ends else None,
        )
        memory = PlainMemory((first, last), limits.num_pages, block_bytes(self.shape, "float32", limits.page_size))
        return TorchEngine(self.shape, weights, memory, page_size=limits.page_size)


@pytest.fixture(scope="session")
def stages() -> Stages:
    return Stages()


@pytest.fixture(scope="session")
def make_goldens() -> ModuleType:
    """The script that wrote the goldens: it knows how to build the reference."""
    path = Path(__file__).with_name("make_goldens.py")
    spec = importlib.util.spec_from_file_location("make_goldens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def goldens() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(__file__).with_name("goldens.json").read_text())
    return found


@pytest.fixture(scope="session")
def reference(make_goldens: ModuleType) -> Any:
    """transformers' Llama with the bundled model's weights, in float32."""
    torch.set_num_threads(THREADS)
    return make_goldens.reference_model()
