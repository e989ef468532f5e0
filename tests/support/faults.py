"""Faults on the way from prefill to decode in a real cluster: planned, seen to act, and how far the KV had come."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from cluster import Cluster
from fake_model import FAKE, LAYERS, complete, expected, text_of
from streams import events, stream
from traces import entries, traced
from waiting import eventually

from kvtransfer.transports.faulty import Fault
from tandem.runtime.history import Attempt, Transfer, What, Write

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


def over(backend: str) -> tuple[str, str]:
    """The arguments of a cluster."""
    return "--disaggregation-transfer-backend", backend


def answered_right(cluster: Cluster, prompt: list[int]) -> str:
    """The id of the answer."""
    answer = complete(cluster, prompt=prompt, max_tokens=50, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(prompt, 50)
    request_id: str = answer["id"]
    return request_id


@contextmanager
def undisturbed(cluster: Cluster, prompt: list[int], max_tokens: int) -> Iterator[None]:
    """Somebody else's answer is right. Its KV has been handed over when the block begins: token 1 comes from decode."""
    with stream(cluster, {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}) as other:
        text, more = "", events(other)
        while len(text) < 2:
            text += next(more)["choices"][0]["text"]
        yield
        assert text + text_of(other) == expected(prompt, max_tokens)


def all_given_back(cluster: Cluster) -> None:
    """Wait until every page is back, on every rank, and nobody waits for a peer's word."""
    cluster.at_rest()

    def waiting() -> dict[str, object]:
        found = {name: (state["pages"]["quarantined"], state["held"]) for name, state in cluster.states().items()}
        return {name: left for name, left in found.items() if left != (0, [])}

    eventually(lambda: not waiting(), "nothing is held for a peer")


def fenced(attempt: Attempt) -> set[str]:
    """The groups whose pages it took a fence to give back."""
    return {rank.rank.partition(".")[0] for rank in attempt.ranks if What.FENCED in rank.outline.marks}


def last_completed(transfer: Transfer) -> str:
    """Of the first attempt's KV, the last that was written well."""
    writes = [write for write in entries(transfer.attempts[0], Write) if write.result == "ok"]
    last = max(writes, key=lambda write: write.ended_us, default=None)
    return f"layer {last.layer}, block {(last.last - 1) // PAGE}" if last else "nothing"


def story(cluster: Cluster, request_id: str, fault: Fault) -> Transfer:
    """All attempts of a request. Prints the fault, and how far the first one came."""
    transfer = traced(cluster, request_id)
    print(f"{fault.value} has acted on {request_id}; the last that was completed: {last_completed(transfer)}")
    return transfer
