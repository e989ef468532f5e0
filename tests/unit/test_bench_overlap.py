"""What the benchmark of overlap judges by what: the last layer alone, a transfer at the end, the colocated group."""

import pytest

from bench import first_token
from bench.client import Timing
from bench.ends import SHM
from bench.overlap import AT_END, LAST_ALONE, STREAMED, Found, Run, median, rows_of
from bench.run import BENCHES


def test_it_can_be_run_by_name():
    assert "overlap" in BENCHES


def test_medians_are_of_each_figure_by_itself():
    assert median([Run(1, 30), Run(2, 10), Run(9, 20)]) == Run(2, 20)


def found(compute: float, exposed_us: float) -> Found:
    runs = {
        STREAMED: Run(5000 + exposed_us, exposed_us),
        AT_END: Run(8000, 3000),
        LAST_ALONE: Run(5200, 200),
    }
    return Found(compute, runs)


def test_what_is_exposed_is_judged_by_the_last_layer_alone():
    bound, at_end, total = rows_of(SHM, found(2.0, 230))
    assert (bound.ratio, bound.holds) == (pytest.approx(1.15), True)
    assert (at_end.ratio, at_end.holds) == (pytest.approx(230 / 3000), None)
    assert total.ratio == pytest.approx(5230 / 8000)
    assert next(rows_of(SHM, found(2.0, 250))).holds is False


@pytest.mark.parametrize(("compute", "holds"), [(0.5, None), (1.0, None), (2.0, False), (8.0, False)])
def test_what_computing_is_too_short_to_hide_has_no_bar(compute: float, holds: bool | None):
    row = next(rows_of(SHM, found(compute, 2000)))
    assert row.holds is holds
    assert row.reason == ("" if row.bar else "no bar: computing is too short to hide it")


def test_first_tokens_are_judged_by_the_colocated_group():
    def timings(first_s: float) -> list[Timing]:
        return [Timing(first_s, first_s + 0.05, 2), Timing(first_s, first_s + 0.05, 2), Timing(9.0, 19.0, 2)]

    found = {first_token.COLOCATED: timings(1.0), "shm": timings(1.04), "mooncake": timings(1.06)}
    rows = {row.case: row for row in first_token.rows_of(1000, found)}
    assert rows["shm, prompt of 1000: first token"].holds is True
    assert rows["mooncake, prompt of 1000: first token"].holds is False
    assert rows["shm, prompt of 1000: second token"].value == pytest.approx(50)
