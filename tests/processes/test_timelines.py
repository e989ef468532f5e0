"""What a real cluster remembers of its requests: every layer's way, from all ranks, over HTTP and as a picture."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import msgspec
import pytest
from cluster import Cluster
from fake_model import FAKE, LAYERS, complete, expected
from streams import model_of
from traces import entries, get, traced
from waiting import DEADLINE_S, eventually

from tandem import cli
from tandem.runtime.history import Chunk, Landing, Transfer, Transfers, What, Write

PROMPT = [65] * 1100
CHUNKS = [(0, 512), (512, 1024), (1024, 1100)]
EVERY = {(layer, *chunk) for layer in range(LAYERS) for chunk in CHUNKS}


def start(cluster_of: Callable[..., Cluster], *more: str) -> Cluster:
    return cluster_of(*FAKE, "--prefill-pp", "2", "--decode-pp", "2", *more)


def ask(cluster: Cluster, prompt: list[int], max_tokens: int) -> str:
    """The id of an answer that was right, once all that it left behind is gone."""
    answer = complete(cluster, prompt=prompt, max_tokens=max_tokens, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(prompt, max_tokens)
    cluster.at_rest()
    request_id: str = answer["id"]
    return request_id


def test_every_layer_of_a_request_is_queued_written_committed_and_landed_in_this_order(
    cluster_of: Callable[..., Cluster],
) -> None:
    cluster = start(cluster_of, "--no-prefix-cache")
    transfer = traced(cluster, ask(cluster, PROMPT, 20))
    assert transfer.silent == {}
    (attempt,) = transfer.attempts
    writes, landings = entries(attempt, Write), entries(attempt, Landing)
    landed = {(landing.layer, landing.first, landing.last): landing.at_us for landing in landings}
    assert {(write.layer, write.first, write.last) for write in writes} == EVERY
    assert landed.keys() == EVERY
    assert len(writes) == len(landings) == len(EVERY)
    for write in writes:
        times = [write.computed_us, write.at_us, write.taken_us, write.begun_us, write.ended_us, write.committed_us]
        times.append(landed[write.layer, write.first, write.last])
        assert all(before <= after for before, after in pairwise(times)), write
        assert (write.result, write.peer) == ("ok", f"d0.{write.layer // (LAYERS // 2)}")


def test_every_rank_tells_its_part(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, "--no-prefix-cache")
    (attempt,) = traced(cluster, ask(cluster, PROMPT, 20)).attempts
    for rank in ("p0.0", "p0.1"):
        chunks = [event.entry for event in attempt.events if event.rank == rank and isinstance(event.entry, Chunk)]
        assert [(chunk.first, chunk.last) for chunk in chunks] == CHUNKS
        assert all(0 < chunk.at_us <= chunk.started_us <= chunk.ran_us for chunk in chunks)
    prefill = [What.GRANT, What.READY, What.BOOTSTRAPPED, What.COMPUTING, What.FIRST_TOKEN, What.GONE]
    decode = [
        What.SUBMITTED,
        What.ASKED,
        What.VOTED,
        What.GRANTED,
        What.TRANSFERRED,
        What.DECODING,
        What.ENDED,
        What.GONE,
    ]
    assert [rank.rank for rank in attempt.ranks] == ["d0.0", "d0.1", "p0.0", "p0.1"]
    for rank in attempt.ranks:
        expected_marks = prefill if rank.role == "prefill" else decode
        times = [rank.outline.marks[what] for what in expected_marks]
        assert times == sorted(times), (rank.rank, rank.outline.marks)
        submitted = rank.outline.marks[What.SUBMITTED]  # decode is told first: its grant may come before
        assert submitted <= rank.outline.marks[What.BOOTSTRAPPED if rank.role == "prefill" else What.ASKED]
        assert not rank.shifted, "all ranks have the clock of one host"
        assert rank.outline.layers == LAYERS // 2
    summary = attempt.summary
    assert (summary.state, summary.reason, summary.tokens) == ("gone", "length", 20)
    assert summary.layers == (LAYERS, LAYERS)
    assert summary.bytes == sum(rank.outline.bytes for rank in attempt.ranks) > 0
    assert {"alloc", "bootstrap", "admit", "compute", "exposed", "queue", "post", "wire", "commit", "decode"} == set(
        summary.phases_ms
    )


def test_trace_draws_it(cluster_of: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    cluster = start(cluster_of, "--no-prefix-cache")
    request_id = ask(cluster, PROMPT, 20)
    assert cli.run(["trace", request_id, "--admin-url", cluster.admin_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("p0 > d0, 1100 prompt tokens, 20 generated, gone (length)")
    assert max(map(len, lines)) <= 100
    layers = [line for line in lines if " layer " in line]
    assert [line.split()[2] for line in layers] == [str(layer) for layer in range(LAYERS)]
    assert all("=" in line and "|" in line for line in layers), "each was on the wire, and landed"
    for label in ("alloc", "d0.1 vote", "bootstrap", "p0.1 tokens 512-1024", "first token", "transferred", "decode"):
        assert any(line.strip().startswith(label) for line in lines), label


def test_all_that_a_client_has_leads_to_its_request(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, "--no-prefix-cache")
    content = json.dumps({"model": model_of(cluster), "messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
    request = urllib.request.Request(
        f"{cluster.url}/v1/chat/completions", content.encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        header, body = answer.headers["x-request-id"], json.load(answer)["id"]
    assert body == f"chatcmpl-{header}"
    for name in (header, body, f"{header}.1"):
        assert traced(cluster, name).id == header
    newest = msgspec.json.decode(get(cluster, "/transfers"), type=Transfers).transfers[0]
    assert (newest.id, newest.groups) == (header, {"prefill": "p0", "decode": "d0"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        traced(cluster, f"{header}.2")
    assert json.load(refused.value)["error"]["code"] == "unknown_request"


def test_every_attempt_of_a_request_that_lost_its_pages_is_told(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, "--num-pages", "24", "--host-pages", "0")

    def one(number: int) -> str:
        answer = complete(cluster, prompt=[32 + number] * 60, max_tokens=90, ignore_eos=True)
        request_id: str = answer["id"]
        return request_id

    def again() -> list[Transfer]:
        with ThreadPoolExecutor(8) as pool:
            found = [traced(cluster, request_id) for request_id in pool.map(one, range(8))]
        return [transfer for transfer in found if len(transfer.attempts) > 1]

    transfer = eventually(again, "pages run out while requests decode")[0]
    attempts = [attempt.summary.attempt for attempt in transfer.attempts]
    assert attempts == list(range(1, len(attempts) + 1))
    for before in transfer.attempts[:-1]:
        assert any(What.EVICTED in rank.outline.marks for rank in before.ranks), before.summary
    assert transfer.attempts[-1].summary.reason == "length"
