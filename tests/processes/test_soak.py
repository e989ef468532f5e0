"""A quarter of a minute of random faults: `make soak MINUTES=30` is the same for longer."""

import pytest

from bench.faults.soak import soaked

MINUTES = 0.25


@pytest.mark.usefixtures("no_other_cluster")
def test_whatever_happens_no_client_sees_anything_wrong_and_the_cluster_comes_to_rest() -> None:
    wrong, figures = soaked(MINUTES, 4, "--disaggregation-transfer-backend=shm")
    print(figures)
    assert wrong == []
