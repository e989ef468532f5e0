"""Faults on the way from prefill to decode in a real cluster: planned, seen to act, and how far the KV had come."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from cluster import Cluster
from fake_model import FAKE, LAYERS
from traces import entries, traced
from waiting import eventually

from kvtransfer.transports.faulty import Fault
from tandem.runtime.history import Transfer, Write

WRITES = LAYERS
"""Of a prompt of one chunk, by the only prefill rank."""
PAGE = 16


@contextmanager
def faulty(
    monkeypatch: pytest.MonkeyPatch, at: Mapping[int, Fault], *arguments: str, seconds: float = 0.5
) -> Iterator[Cluster]:
    """A cluster whose only prefill rank suffers this: faults by the number of the write, from 1."""
    plan = {"at": {str(number): fault.value for number, fault in at.items()}, "seconds": seconds}
    with monkeypatch.context() as patch:
        patch.setenv("TANDEM_TEST_FAULTS", "1")
        patch.setenv("TANDEM_TEST_FAULT_PLAN", json.dumps(plan))
        with Cluster(*FAKE, "--prefill-pp", "1", *arguments) as cluster:
            yield cluster


def acted(cluster: Cluster, fault: Fault, times: int = 1) -> None:
    """Wait until a fault has bitten so often."""
    marker = f"fault acted: {fault.value}"
    eventually(lambda: cluster.stderr().count(marker) == times, f"{marker}, {times} times")


def story(cluster: Cluster, request_id: str, fault: Fault) -> Transfer:
    """All attempts of a request. Prints the fault, and how far the first one came."""
    transfer = traced(cluster, request_id)
    writes = [write for write in entries(transfer.attempts[0], Write) if write.result == "ok"]
    last = max(writes, key=lambda write: write.ended_us, default=None)
    reached = f"layer {last.layer}, block {(last.last - 1) // PAGE}" if last else "nothing"
    print(f"{fault.value} has acted on {request_id}; the last that was completed: {reached}")
    return transfer
