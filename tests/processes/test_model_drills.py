"""Four cells of the matrix of kills with the real model: whoever is struck, the text stays that of the reference."""

import random
from collections.abc import Iterator

import pytest
from goldens import reference_text, sure_goldens

from bench.faults.cells import Cell, Drills, Load
from bench.faults.matrix import drilled
from bench.faults.streams import Ask, Asked
from tandem.core.config import RoleName
from tandem.engine.model import bundled_model_path
from tandem.engine.tokens import load_tokenizer
from tandem.local.wanted import served_name
from tandem.runtime.drills import Point

FLAGS = (
    "--prefill-groups=2",
    "--decode-groups=2",
    "--dtype=float32",
    "--threads=1",
    "--timer-scale=5",
    "--num-pages=512",
    "--quiesce-ms=2000",
)
LONGEST = 300
"""Of the prompts: each of them is one chunk."""
LOAD = Load(early=6, early_tokens=16, late=4, late_tokens=16)
CELLS = [
    Cell(RoleName.PREFILL, "p0", 1, Point.FORWARD, "SIGKILL"),
    Cell(RoleName.DECODE, "d0", 0, Point.DECODE, "SIGKILL"),
    Cell(RoleName.PREFILL, "p1", 0, Point.LAYER, "SIGSTOP"),
    Cell(RoleName.DECODE, "d1", 1, Point.FORWARD, "SIGSTOP"),
]


def golden_request() -> Ask:
    """Asks for the beginning of what a golden has."""
    path = str(bundled_model_path())
    tokenizer, model = load_tokenizer(path), served_name(path)
    goldens = [golden for golden in sure_goldens() if len(golden["prompt"]) <= LONGEST]

    def ask(rng: random.Random, max_tokens: int) -> Asked:
        golden = rng.choice(goldens)
        tokens = golden["tokens"][:max_tokens]
        text = reference_text({**golden, "tokens": tokens}, tokenizer)
        return Asked(model, tuple(golden["prompt"]), len(tokens), text, f"{rng.getrandbits(64):x}")

    return ask


@pytest.fixture(scope="module")
def drills(_clusters: object) -> Iterator[Drills]:
    _clusters.stop()  # type: ignore[attr-defined]
    with drilled(*FLAGS) as (cluster, folder):
        yield Drills(cluster, folder, golden_request(), LOAD, seed=1)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_real_model_answers_as_if_nothing_had_happened(cell: Cell, drills: Drills) -> None:
    result = drills.run(cell)
    assert result.wrong == "", result
    assert result.struck is not None
    assert (result.struck.rank, result.struck.point) == (cell.victim, cell.point)
    assert result.ends == {"right": sum(result.ends.values())}
