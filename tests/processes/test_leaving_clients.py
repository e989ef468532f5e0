"""Clients that leave at each point of a transfer: all pages come back, and nobody else's text is touched."""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import msgspec
import pytest
from cluster import Cluster
from fake_model import LAYERS
from faults import WRITES, acted, all_given_back, answered_right, faulty, fenced, last_completed, over, undisturbed
from streams import asking
from traces import get, traced
from waiting import eventually

from kvtransfer.transports.faulty import Fault
from tandem import cli
from tandem.runtime.history import Summary, Transfer, Transfers, What

PROMPT = list(b"whoever asked for this leaves before it is answered")
OTHER = list(b"and this one stays until the end, whatever becomes of the others")
LONG = 400
HELD_UP_S = 4.0

pytestmark = pytest.mark.usefixtures("no_other_cluster")


class Point(NamedTuple):
    """Where a client leaves: what holds the transfer up there, and how to tell that it is there."""

    held_up: int | None  # the number of a write, from 1
    reached: Callable[[Transfer], bool]


def marked(transfer: Transfer, what: What, role: str) -> bool:
    ranks = [rank for rank in transfer.attempts[0].ranks if rank.role == role]
    return len(ranks) > 0 and all(what in rank.outline.marks for rank in ranks)


def landed(transfer: Transfer) -> int:
    """Layers whose last commit is on its way to decode, or there."""
    return transfer.attempts[0].summary.layers[0]


POINTS = {
    "in the middle of the layers": Point(WRITES + 3, lambda transfer: 0 < landed(transfer) < LAYERS),
    "before the last commit": Point(2 * WRITES, lambda transfer: landed(transfer) == LAYERS - 1),
    "after all commits": Point(None, lambda transfer: marked(transfer, What.TRANSFERRED, "decode")),
}


def asked(cluster: Cluster) -> str:
    """The id of the request for PROMPT, once the ranks know of it."""

    def found() -> list[Summary]:
        newest = msgspec.json.decode(get(cluster, "/transfers"), type=Transfers).transfers
        return [one for one in newest if one.prompt_tokens == len(PROMPT)]

    return eventually(found, "the request is known")[0].id


@pytest.mark.parametrize("backend", ["mooncake", "shm"])
@pytest.mark.parametrize("where", POINTS)
def test_a_client_that_leaves_during_a_transfer(monkeypatch: pytest.MonkeyPatch, where: str, backend: str) -> None:
    point = POINTS[where]
    plan = {} if point.held_up is None else {point.held_up: Fault.DELAY}
    with faulty(monkeypatch, plan, *over(backend), seconds=HELD_UP_S) as cluster:
        with undisturbed(cluster, OTHER, LONG):
            with closing(asking(cluster, {"prompt": PROMPT, "max_tokens": 8000, "ignore_eos": True})):
                request_id = asked(cluster)
                acted(cluster, Fault.DELAY, times=len(plan))
                eventually(lambda: point.reached(traced(cluster, request_id)), where)
                print(f"left {where}; the last that was completed: {last_completed(traced(cluster, request_id))}")
            answered_right(cluster, PROMPT)
        all_given_back(cluster)
        (attempt,) = traced(cluster, request_id).attempts
        assert attempt.summary.tokens is None or attempt.summary.tokens < 8000
        assert fenced(attempt) == set()
        answered_right(cluster, PROMPT)


def test_a_client_that_leaves_before_the_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode is paused, so it grants nothing."""
    with faulty(monkeypatch, {}) as cluster:
        with undisturbed(cluster, OTHER, LONG):
            assert cli.run(["control", "pause", "--group", "d0", "--admin-url", cluster.admin_url]) == 0
            eventually(lambda: cluster.state("d0.1")["paused"], "all of decode is paused")
            with closing(asking(cluster, {"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True})):
                request_id = asked(cluster)
                known = What.SUBMITTED
                eventually(lambda: marked(traced(cluster, request_id), known, "decode"), "decode knows of it")
                eventually(lambda: cluster.state("p0.0")["rooms"] == 1, "prefill knows of it")
                assert not marked(traced(cluster, request_id), What.GRANTED, "decode")
                print(
                    f"left before the grant; the last that was completed: {last_completed(traced(cluster, request_id))}"
                )
            eventually(lambda: cluster.state("p0.0")["rooms"] == 0, "prefill lets go")
            assert cli.run(["control", "resume", "--group", "d0", "--admin-url", cluster.admin_url]) == 0
            answered_right(cluster, PROMPT)
        all_given_back(cluster)
        assert not marked(traced(cluster, request_id), What.GRANTED, "decode")
