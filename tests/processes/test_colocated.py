"""Colocated groups as real processes: one ring prefills and decodes, nothing is transferred, and tokens are right."""

import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import Cluster
from fake_model import FAKE, all_answered_right, answers_right, complete, expected
from streams import events, stream
from waiting import DEADLINE_S, eventually


def start(cluster_of: Callable[..., Cluster], pp: int, *more: str) -> Cluster:
    return cluster_of(*FAKE, "--colocated", "--pp", str(pp), *more)


@pytest.mark.parametrize("pp", [1, 2, 3])
def test_any_shape_answers_mixed_requests_right(cluster_of: Callable[..., Cluster], pp: int) -> None:
    cluster = start(cluster_of, pp)
    shared = random.Random(pp).choices(range(32, 127), k=200)

    def one(number: int) -> None:
        rng = random.Random(number)  # of its own: what is drawn must not depend on which thread comes first
        own = [rng.randrange(32, 127) for _ in range(rng.choice([1, 15, 16, 700]))]
        prompt = rng.choice([own, shared + own])
        answers_right(cluster, prompt, rng, number)

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, range(24)))


def test_a_tiny_page_pool_makes_the_latest_compute_anew_and_nobody_sees_it(
    cluster_of: Callable[..., Cluster],
) -> None:
    cluster = start(cluster_of, 2, "--num-pages", "12", "--pp-async-batch-depth", "1")
    prompts = [[32 + number] * 20 for number in range(8)]

    all_answered_right(cluster, prompts, max_tokens=150)


def test_leaving_clients_leave_no_pages(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, 3, "--no-prefix-cache")

    def one(number: int) -> None:
        rng = random.Random(number)
        prompt = [rng.randrange(32, 127) for _ in range(rng.choice([5, 200, 2000]))]
        with stream(cluster, {"prompt": prompt, "max_tokens": 500, "ignore_eos": True}) as response:
            for _, _event in zip(range(number % 5), events(response), strict=False):
                pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(60)))
    states = cluster.at_rest()
    assert {state["pages"]["free"] for state in states.values()} == {states["c0.0"]["pages"]["total"]}


def test_a_prompt_that_was_computed_before_is_shared(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, 2)
    prompt = random.Random(11).choices(range(32, 127), k=500)
    ticks = []
    for _ in range(2):
        before = cluster.state("c0.0")
        answer = complete(cluster, prompt=prompt, max_tokens=10, ignore_eos=True)
        assert answer["choices"][0]["text"] == expected(prompt, 10)
        ticks.append(cluster.at_rest()["c0.0"]["pages"]["cached"] - before["pages"]["cached"])
    assert ticks == [31, 0], "509 tokens fill 31 pages, and the second time nothing is new"


def order(cluster: Cluster, *words: str) -> None:
    command = [sys.executable, "-P", "-m", "tandem.cli", "control", *words, "--admin-url", cluster.admin_url]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr


def states(cluster: Cluster) -> dict[str, str]:
    """What the router thinks of each group."""
    with urllib.request.urlopen(f"{cluster.admin_url}/workers", timeout=DEADLINE_S) as answer:
        return {worker["name"]: worker["state"] for worker in json.load(answer)["workers"]}


def test_a_group_that_drains_leaves_its_requests_to_the_other(cluster_of: Callable[..., Cluster]) -> None:
    cluster = cluster_of(*FAKE, "--colocated", "--pp", "1", "--groups", "2")
    eventually(lambda: states(cluster) == {"c0": "usable", "c1": "usable"}, "the router has heard both")
    order(cluster, "drain", "--group", "c0")
    eventually(lambda: cluster.state("c0.0")["draining"], "the order has got there")
    tick = cluster.at_rest()["c0.0"]["tick"]
    for number in range(4):
        prompt = [32 + number] * 10
        text = complete(cluster, prompt=prompt, max_tokens=5, ignore_eos=True)["choices"][0]["text"]
        assert text == expected(prompt, 5)
    assert cluster.state("c0.0")["tick"] == tick, "all four went to c1"
    order(cluster, "drain", "--group", "c1")
    with pytest.raises(urllib.error.HTTPError) as refused:
        complete(cluster, prompt=[65], max_tokens=1)
    assert (refused.value.code, json.load(refused.value)["error"]["code"]) == (503, "draining")
    for group in ("c0", "c1"):
        order(cluster, "resume", "--group", group)
    eventually(lambda: states(cluster) == {"c0": "usable", "c1": "usable"}, "the groups say so themselves")
    assert complete(cluster, prompt=[65], max_tokens=1)["choices"][0]["text"] == expected([65], 1)


def test_no_rank_loads_the_transfer_engine(cluster_of: Callable[..., Cluster]) -> None:
    cluster = start(cluster_of, 2)
    for name in cluster.http:
        with open(f"/proc/{cluster.pids[name]}/maps") as maps:
            libraries = maps.read()
        assert "mooncake" not in libraries, name
        assert "libtorch" not in libraries, name
