"""Two prefill and two decode groups: a request goes where its prefix is, and the router can say why."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cluster import Cluster
from fake_model import FAKE, complete, expected
from streams import model_of
from traces import get
from waiting import DEADLINE_S, eventually

from router.explain import Explanation, Option

SHARED = [65 + index % 23 for index in range(1024)]
PAGE = 16


@pytest.fixture
def cluster(cluster_of: Callable[..., Cluster]) -> Cluster:
    return cluster_of(*FAKE, "--prefill-groups", "2", "--decode-groups", "2")


def explain(cluster: Cluster, prompt: list[int], **more: Any) -> Explanation:
    return explained(cluster, {"prompt": prompt, **more})


def explained(cluster: Cluster, asked: dict[str, Any]) -> Explanation:
    body = json.dumps({"model": model_of(cluster), **asked}).encode()
    request = urllib.request.Request(f"{cluster.admin_url}/route/explain", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return msgspec.json.decode(answer.read(), type=Explanation)


def option(explanation: Explanation, groups: tuple[str, ...]) -> Option:
    return next(option for option in explanation.options if option.groups == groups)


def workers(cluster: Cluster) -> dict[str, Any]:
    return {worker["name"]: worker for worker in json.loads(get(cluster, "/workers"))["workers"]}


def ask(cluster: Cluster, prompt: list[int]) -> None:
    answer = complete(cluster, prompt=prompt, max_tokens=4, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(prompt, 4)
    cluster.at_rest()


def is_exact(cluster: Cluster) -> bool:
    """The router knows as many pages of every group as the group has cached."""
    return all(worker["cached_pages"] == cached(worker) for worker in workers(cluster).values())


def cached(worker: dict[str, Any]) -> int:
    """Pages, as rank 0 says itself."""
    with urllib.request.urlopen(f"http://{worker['members'][0]['http']}/state", timeout=DEADLINE_S) as answer:
        pages: int = json.load(answer)["pages"]["cached"]
    return pages


def test_a_request_goes_where_its_prefix_is(cluster: Cluster):
    ask(cluster, [*SHARED, 40])
    eventually(lambda: is_exact(cluster), "the router knows what is cached", deadline_s=DEADLINE_S)
    told = explain(cluster, [*SHARED, 41])
    assert told.chosen == told.options[0].groups
    assert (len(told.options), told.excluded) == (4, [])
    best, worst = told.options[0], told.options[-1]
    assert best.cached_on_prefill == best.cached_on_decode == len(SHARED)
    assert worst.cached_on_prefill == worst.cached_on_decode == 0
    assert (best.parts.compute, worst.parts.compute) == (1, len(SHARED) + 1)
    before = [cached(worker) for worker in workers(cluster).values()]
    for last in (42, 43, 44):
        ask(cluster, [*SHARED, last])
    assert before == [cached(worker) for worker in workers(cluster).values()], (
        "no other group computed the prefix, and what is new fills no page"
    )


def test_another_prefix_goes_elsewhere(cluster: Cluster):
    ask(cluster, [*SHARED, 40])
    eventually(lambda: is_exact(cluster), "the router knows what is cached", deadline_s=DEADLINE_S)
    home = explain(cluster, [*SHARED, 41]).chosen
    other = [40 + index % 19 for index in range(1024)]
    told = explain(cluster, other)
    assert told.chosen is not None
    assert home is not None
    assert told.chosen[0] != home[0], "the home has computed more lately"


def test_another_salt_finds_nothing(cluster: Cluster):
    ask(cluster, [*SHARED, 40])
    eventually(lambda: is_exact(cluster), "the router knows what is cached", deadline_s=DEADLINE_S)
    told = explain(cluster, [*SHARED, 41], cache_salt="somebody else")
    assert {one.cached_on_prefill for one in told.options} == {0}


def test_a_chat_is_explained_as_well_and_a_bad_body_is_told_its_field(cluster: Cluster):
    told = explained(cluster, {"messages": [{"role": "user", "content": "where do I go?"}]})
    assert told.prompt_tokens > 0
    assert len(told.options) == 4
    with pytest.raises(urllib.error.HTTPError) as refused:
        explained(cluster, {"messages": "none"})
    with refused.value as error:
        assert error.code == 400
        assert json.load(error)["error"]["param"] == "messages"


def test_a_drained_group_is_left_out_with_the_reason(cluster: Cluster):
    order = urllib.request.Request(f"{cluster.admin_url}/workers/p1/drain", method="POST")
    urllib.request.urlopen(order, timeout=DEADLINE_S).close()
    try:
        told = explain(cluster, SHARED)
        assert {one.groups[0] for one in told.options} == {"p0"}
        assert [(one.groups, one.why) for one in told.excluded] == [(("p1",), "it is draining")]
    finally:
        order = urllib.request.Request(f"{cluster.admin_url}/workers/p1/resume", method="POST")
        urllib.request.urlopen(order, timeout=DEADLINE_S).close()
        eventually(lambda: len(explain(cluster, SHARED).options) == 4, "p1 is back", deadline_s=DEADLINE_S)


def test_after_a_crash_the_router_forgets_what_the_group_had(no_other_cluster: None):
    with Cluster(*FAKE, "--prefill-groups", "2", "--decode-groups", "2") as cluster:
        ask(cluster, [*SHARED, 40])
        eventually(lambda: is_exact(cluster), "the router knows what is cached", deadline_s=DEADLINE_S)
        home = explain(cluster, [*SHARED, 41]).options[0].groups[0]
        os.kill(cluster.pids[f"{home}.0"], signal.SIGKILL)
        eventually(lambda: is_back_empty(cluster), "the group is back, without its cache", deadline_s=DEADLINE_S)
        complete(cluster, prompt=[*SHARED, 40], max_tokens=4)
        eventually(lambda: is_exact(cluster), "the router knows the new epoch's cache", deadline_s=DEADLINE_S)


def is_back_empty(cluster: Cluster) -> bool:
    options = explain(cluster, [*SHARED, 41]).options
    return len(options) == 4 and all(one.cached_on_prefill == 0 for one in options)
