"""Eight cells of the matrix of kills, which has each rank, point and signal: `make matrix` runs all of it."""

from collections.abc import Iterator

import pytest

from bench.faults.cells import Cell, Drills, Load
from bench.faults.matrix import fake_drills
from tandem.core.config import RoleName
from tandem.runtime.drills import Point

PREFILL, DECODE = RoleName.PREFILL, RoleName.DECODE
CELLS = [
    Cell(PREFILL, "p0", 0, Point.QUEUE, "SIGKILL"),
    Cell(DECODE, "d0", 1, Point.BOOTSTRAP, "SIGSTOP"),
    Cell(PREFILL, "p1", 1, Point.FORWARD, "SIGKILL"),
    Cell(DECODE, "d1", 0, Point.LAYER, "SIGKILL"),
    Cell(PREFILL, "p0", 1, Point.COMMIT, "SIGSTOP"),
    Cell(DECODE, "d0", 0, Point.COMMITTED, "SIGKILL"),
    Cell(DECODE, "d1", 1, Point.DECODE, "SIGKILL"),
    Cell(PREFILL, "p1", 0, Point.VOTE, "SIGSTOP"),
    Cell(DECODE, "d0", 1, Point.FORMING, "SIGKILL"),
]
"""Any two of role, rank, point and signal meet in as few cells as that takes, in each point once."""


@pytest.fixture(scope="module")
def drills(_clusters: object) -> Iterator[Drills]:
    _clusters.stop()  # type: ignore[attr-defined]
    with fake_drills("--timer-scale=2", load=Load(early=6, late=4), seed=1) as running:
        yield running


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_whoever_is_struck_wherever_every_text_is_right_and_every_page_comes_back(cell: Cell, drills: Drills) -> None:
    result = drills.run(cell)
    assert result.wrong == "", result
    assert result.struck is not None
    assert (result.struck.rank, result.struck.point) == (cell.victim, cell.point)
    assert result.ends == {"right": sum(result.ends.values())}
    assert result.open > 0
