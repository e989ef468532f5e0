"""Hundreds of clients that leave at once, wherever their requests are: `tandem bench storm` does it with thousands."""

import random

import pytest

from bench.faults.matrix import LAYERS
from bench.faults.storm import Storm, storm_on
from bench.faults.streams import ANSWER_S, End, Ended, FakeRequests, Stream

REQUESTS = 300
STATES = ("half sent", "waiting in the router", "waiting for prefill", "between two states of decode", "in decode")


@pytest.mark.usefixtures("no_other_cluster")
def test_a_storm_of_aborts_ends_each_request_once_and_gives_every_page_back() -> None:
    with storm_on(REQUESTS, 1, "--timer-scale=2", "--disaggregation-transfer-backend=shm") as storm:
        storm.rise()
        states = storm.states()
        assert [state for state in STATES if not states[state]] == [], states
        storm.leave()
        assert storm.terminals() == {1: storm.whole}
        serves(storm)


def serves(storm: Storm) -> None:
    asked = FakeRequests(LAYERS, 8, 20)(random.Random(1), 20)
    assert Stream(storm.cluster.url, asked).wait(ANSWER_S) == Ended(End.RIGHT)
