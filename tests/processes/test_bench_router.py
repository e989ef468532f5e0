"""The benchmark of the router, from end to end and with few requests, before mock groups and without peers."""

import math

import pytest

from bench.router.cases import Size, measured
from bench.router.contenders import NGINX, PEERS, RIVALS

TINY = Size(repeats=1, requests=32, firsts=3, sloped=30, idle=10, paced=10, seconds=0.5)


def test_it_measures_our_router_and_names_the_peers_that_are_absent(
    monkeypatch: pytest.MonkeyPatch, no_other_cluster: None
) -> None:
    monkeypatch.delenv(PEERS, raising=False)
    rows = measured(TINY, seed=1)
    assert all(math.isfinite(row.value) for row in rows)
    absent = {row.reference for row in rows if PEERS in row.reason}
    assert absent == {peer.name for peer in RIVALS}
    assert all(row.holds is None for row in rows if row.reference in (*absent, NGINX))
    judged = [row.case for row in rows if row.holds is not None]
    assert judged == [
        "first token of a stream, p50: added",
        "first token of a stream, p99: added",
        "memory grown in 30 requests, for 10,000",
        "10 idle streams: memory of each",
    ]
