"""What a cluster's processes serve at /metrics: all of the table, nothing else, within its bounds, and it moves."""

import json
import urllib.request
from collections.abc import Iterator

import pytest
from cluster import Cluster
from fake_model import FAKE, LAYERS, complete, expected
from faults import acted, answered_right, over
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from streams import stream
from waiting import DEADLINE_S, eventually

from kvtransfer.transports.faulty import Fault
from tandem.core.config import RoleName
from tandem.runtime.metrics_table import METRICS, ROUTER, Metric, served_by

PROMPT = list(b"a prompt of several pages, the write of one of which fails, so that all of it is computed once more")

REQUESTS = 4
"""Of the traffic, that ask the model."""
STILL = {
    "router_queue_depth": "nobody waits",
    "migrations_total": "no group is lost",
    "shed_total": "there is room for all",
    "store_update_age_seconds": "all facts are acknowledged at once",
    "divergence_total": "nobody diverges",
    "ring_lag_ticks": "nothing is under way when it is read",
    "running_requests": "nothing is under way when it is read",
    "waiting_requests": "nothing is under way when it is read",
    "kv_transfers": "nothing is under way when it is read",
    "kv_held_pages": "all peers have given word",
    "kv_oldest_hold_seconds": "all peers have given word",
    "kv_checksum_mismatch_total": "nothing is damaged",
    "retracted_total": "there are pages for all",
    "epoch_fences_total": "the epoch goes on",
    "breaker_state": "one failure opens none",
}
"""What this traffic need not move, and why."""

STILL_ON = {
    RoleName.PREFILL.value: {"vote_wait_seconds": "prefill is asked nothing"},
    RoleName.DECODE.value: {"kv_transfer_failures_total": "prefill has found it, and ends the room on decode"},
}

Process = tuple[str, str, str]
"""Kind, name, and where its /metrics are."""


def processes(cluster: Cluster) -> Iterator[Process]:
    yield ROUTER, ROUTER, cluster.admin_url
    for name, address in cluster.http.items():
        yield (RoleName.PREFILL if name[0] == "p" else RoleName.DECODE).value, name, f"http://{address}"


def scraped(url: str) -> dict[str, Family]:
    """Families by the name in the table."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=DEADLINE_S) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(answer.read().decode()))
    suffix = {"counter": "_total"}
    return {family.name.removeprefix("tandem_") + suffix.get(family.type, ""): family for family in families}


def moved(family: Family) -> bool:
    """Whether anything was counted, observed or found."""
    return any(sample.value for sample in family.samples if not sample.name.endswith(("_bucket", "_sum")))


def out_of_bounds(metric: Metric, family: Family, name: str) -> list[str]:
    """What the table does not allow; of a rank, its own labels are its own."""
    found = [] if family.type == metric.kind else [f"it is a {family.type}"]
    found += [] if family.documentation == metric.help else ["its help is another"]
    own = dict(zip(("group", "rank"), name.split("."), strict=False)) if name != ROUTER else {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        if sorted(labels) != sorted(label.name for label in metric.labels):
            found.append(f"its labels are {list(labels)}")
        for label in metric.labels:
            if label.values and labels[label.name] not in label.values:
                found.append(f"{label.name} is {labels[label.name]}")
        found += [f"{key} is {labels[key]}" for key, value in own.items() if labels[key] != value]
    return found


def traffic(cluster: Cluster) -> None:
    """A hand-over that fails and is tried again, a prompt that is cached everywhere, a client that leaves."""
    answered_right(cluster, PROMPT)
    answered_right(cluster, PROMPT)
    with stream(cluster, {"prompt": PROMPT[:40], "max_tokens": 6000, "ignore_eos": True}) as response:
        assert response.readline()
    short = complete(cluster, prompt=[66] * 5, max_tokens=9, ignore_eos=True)
    assert short["choices"][0]["text"] == expected([66] * 5, 9)
    cluster.at_rest()


def wanted(kind: str) -> list[str]:
    """What traffic has to move."""
    still = STILL.keys() | STILL_ON.get(kind, {}).keys()
    return [metric.name for metric in served_by(kind) if metric.name not in still]


@pytest.mark.usefixtures("no_other_cluster")
def test_every_process_serves_what_the_table_says_and_traffic_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TEST_FAULTS", "1")
    monkeypatch.setenv("TANDEM_TEST_FAULT_PLAN", json.dumps({"at": {str(LAYERS // 2): Fault.FAIL_SETTLED.value}}))
    with Cluster(*FAKE, "--checksum-sample", "1", *over("shm")) as cluster:
        traffic(cluster)
        acted(cluster, Fault.FAIL_SETTLED, times=2)  # each prefill rank fails its own
        for kind, name, url in processes(cluster):
            table, served = {metric.name: metric for metric in served_by(kind)}, scraped(url)
            assert served.keys() == table.keys(), name
            wrong = {one: out_of_bounds(metric, served[one], name) for one, metric in table.items()}
            assert not any(wrong.values()), (name, wrong)
            for one in wanted(kind):
                eventually(lambda url=url, one=one: moved(scraped(url)[one]), f"{one} of {name} moves")

        served = scraped(cluster.admin_url)
        codes = {sample.labels["code"] for sample in served["http_requests_total"].samples if sample.value}
        assert codes == {"200"}, "also of the client that left when its answer had begun"
        counted = [
            sample.value for sample in served["request_duration_seconds"].samples if sample.name.endswith("_count")
        ]
        assert counted == [REQUESTS]


def test_what_need_not_move_is_in_the_table():
    names = [*STILL, *(name for names in STILL_ON.values() for name in names)]
    assert set(names) <= {metric.name for metric in METRICS}
