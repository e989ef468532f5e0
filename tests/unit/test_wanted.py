"""What the flags of `tandem up` come to, and how its processes are started once more."""

import os
from typing import Any

import pytest

from router import given
from tandem import cli
from tandem.core.config import Frontend, Group, Limits, RoleName, RouterOptions, Topology
from tandem.local import cluster
from tandem.local.child import Command
from tandem.local.cluster import command_again, router_command
from tandem.local.wanted import Ring, Wanted, default_threads

ODD = Wanted(
    model="fake:8",
    rings=(Ring(role=RoleName.PREFILL, groups=2, pp_size=1), Ring(role=RoleName.DECODE, groups=1, pp_size=2)),
    limits=Limits(page_size=8, num_pages=77),
    num_pages=77,
    served_model_name="m",
    dtype="float32",
    transfer_backend="shm",
    host="::1",
    port=1,
    admin_port=2,
    registry_url="redis://h",
    frontend=Frontend(
        policy="power_of_two",
        max_concurrent_requests=9,
        queue_size=10,
        queue_timeout_secs=11.0,
        request_timeout_secs=12.0,
        retry_max_retries=1,
        cb_failure_threshold=14,
        cb_timeout_duration_secs=15.0,
        max_payload_size=16_000,
        api_keys_file=__file__,
        tls_cert_path=__file__,
        tls_key_path=__file__,
    ),
    api_key="k",
    timer_scale=3.0,
    drain_s=4.0,
    dump_dir="d",
    record_dir="r",
    threads=5,
)
FLAGS = f"""
    --model fake:8 --prefill-groups 2 --prefill-pp 1 --page-size 8 --num-pages 77 --served-model-name m --dtype float32
    --disaggregation-transfer-backend shm --host ::1 --port 1 --admin-port 2 --registry-url redis://h --timer-scale 3
    --policy power_of_two --max-concurrent-requests 9 --queue-size 10 --queue-timeout-secs 11
    --request-timeout-secs 12 --retry-max-retries 1 --cb-failure-threshold 14 --cb-timeout-duration-secs 15
    --max-payload-size 16000 --api-key k --api-keys-file {__file__} --tls-cert-path {__file__} --tls-key-path {__file__}
    --drain-s 4 --dump-dir d --record-dir r --threads 5
"""
ROUTER = RouterOptions(cluster="c", model="fake:8", served_model_name="m", registry_url="redis://h", port=0)


def test_every_flag_arrives(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("TANDEM_")]:
        monkeypatch.delenv(name)  # what is not told by a flag is not to come from whoever runs the tests
    wanted: list[Any] = []
    monkeypatch.setattr(cluster, "up", lambda what: wanted.append(what) or 0)
    monkeypatch.setattr(given, "check_frontend", lambda frontend, api_key: None)
    assert cli.run(["up", *FLAGS.split()]) == 0
    assert wanted == [ODD]


def test_a_router_is_started_again_on_the_ports_that_it_has_announced():
    urls = {"url": "http://127.0.0.1:4711", "admin_url": "http://[::1]:4712"}
    again = command_again(ROUTER, router_command(ROUTER), urls)
    assert {"--port=4711", "--admin-port=4712"} < set(again.arguments)
    assert "--port=0" in router_command(ROUTER).arguments


def test_a_rank_is_started_again_as_it_was():
    command = Command("p0.0", "prefill p0 rank 0", ("program",), {}, "p0", "rank 0")
    assert command_again(ROUTER, command, {"url": "http://h:1", "admin_url": "http://h:2"}) is command


@pytest.mark.parametrize(
    ("groups", "native", "other"),
    [
        ([("prefill", 1), ("decode", 1)], 8, 4),
        ([("prefill", 2), ("decode", 1)], 8, 2),
        ([("prefill", 1), ("prefill", 1), ("decode", 1), ("decode", 2)], 8, 1),
        ([("colocated", 2)], 8, 4),
        ([("prefill", 30), ("decode", 1)], 8, 1),
    ],
)
def test_every_rank_may_have_all_cores_where_they_are_shared_as_ranks_compute(
    monkeypatch: pytest.MonkeyPatch, groups: list[tuple[str, int]], native: int, other: int
):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    ranks = [Group(RoleName(role), f"g{at}", (1,) * size) for at, (role, size) in enumerate(groups)]
    topology = Topology(cluster="c", model="m", groups=tuple(ranks), limits=Limits())
    assert default_threads(topology, "cpu") == native
    assert default_threads(topology, "torch") == other
