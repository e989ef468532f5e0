"""The chart's pods as processes on hosts of their own: ranks of one group on different ones, KV over Mooncake's TCP,
and between them a node that lets through what the NetworkPolicies allow.
"""

import json
from collections.abc import Iterator

import pytest
from chart import COMPONENT, NAME, of_kind, pods, secrets_of, template
from fake_model import LAYERS, expected
from netpol import End
from pod_net import LONG_S, Host, PodNet, until_ready
from scraping import Prometheus, to_query
from waiting import eventually

from k8s.dashboards import DASHBOARDS, grafana
from tandem.runtime.embedded import server_binary

VALUES = {
    "cluster": "in pods",
    "model": {"path": f"fake:{LAYERS}", "name": "fake"},
    "workload": {"kind": "lws"},
    "ranks": {"flags": {"timer-scale": 5, "checksum-sample": 1, "num-pages": 256}},
    "router": {"replicas": 1, "flags": {"timer-scale": 5}},
    "monitoring": {"monitors": {"enabled": True}, "rules": {"enabled": True}},
}
PROMPT = [5, 6, 7, 8] * 20
TOKENS = 24


class Release:
    """All its pods, running; `client` is somebody in another namespace."""

    def __init__(self, net: PodNet) -> None:
        self.net = net
        self.objects = net.objects
        self.secrets = secrets_of(net.objects)
        self.pods = {pod.name: net.pod(pod) for pod in pods(net.objects)}
        self.client = net.add(End(namespace="elsewhere"))
        self.prometheus = net.add(End(namespace="monitoring"))
        net.services[f"{NAME}-registry"] = self.one("registry").end.ip
        net.services[f"http://{NAME}:8000"] = f"http://{self.one('router').end.ip}:8000"
        net.obey()

    def of(self, *components: str) -> list[Host]:
        return [host for host in self.pods.values() if host.end.labels.get(COMPONENT) in components]

    def one(self, component: str) -> Host:
        [host] = self.of(component)
        return host

    def start(self, host: Host) -> None:
        assert host.end.pod is not None
        [container] = host.end.pod.spec["containers"]
        host.start(container, self.secrets)

    def probe(self, host: Host, kind: str) -> str:
        """The URL that the kubelet asks."""
        pod = host.end.pod
        assert pod is not None
        get = pod.spec["containers"][0][f"{kind}Probe"]["httpGet"]
        return f"http://{host.end.ip}:{pod.port(get['port'])}{get['path']}"

    def router(self, path: str, port: int = 8000) -> str:
        return f"http://{self.one('router').end.ip}:{port}{path}"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with PodNet(tmp_path_factory.mktemp("pods"), template(VALUES, "values-cpu.yaml")) as net:
        net.bin.joinpath("valkey-server").symlink_to(server_binary())
        running = Release(net)
        running.start(running.one("registry"))
        for host in running.of("prefill", "decode", "router"):
            running.start(host)
        for host in running.of("prefill", "decode", "router"):
            until_ready(host, running.probe(host, "readiness"), net.node)
        yield running


def answer_of(release: Release) -> str:
    """To the prompt, by way of the router; or why there is none."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    status, answer = release.client.ask(release.router("/v1/completions"), json.dumps(body))
    return str(json.loads(answer)["choices"][0]["text"]) if status == 200 else answer


def test_a_prompt_is_answered_through_the_router(release: Release) -> None:
    hosts = {host.end.ip for host in release.of("prefill", "decode")}
    assert len(hosts) == 4, "each rank is on a host of its own"
    assert answer_of(release) == expected(PROMPT, TOKENS)


def test_probes_say_what_the_kubelet_asks_for(release: Release) -> None:
    for host in release.of("prefill", "decode", "router"):
        for kind in ("startup", "readiness", "liveness"):
            until_ready(host, release.probe(host, kind), release.net.node)


def test_nobody_reaches_what_the_policies_do_not_say(release: Release) -> None:
    [prefill, *_], [decode, *_] = release.of("prefill"), release.of("decode")
    router, registry = release.one("router"), release.one("registry")
    assert release.client.reaches(router, 8000) == "open"
    assert release.client.reaches(router, 8001) == "forbidden"
    assert release.client.reaches(registry, 6379) == "forbidden"
    for rank in (prefill, decode):
        assert [release.client.reaches(rank, port) for port in (8081, 15000, 40000)] == ["forbidden"] * 3
        assert rank.reaches(registry, 6379) == "open"
        assert rank.reaches(router, 8000) == "forbidden"
    assert router.reaches(prefill, 8081) == "open"
    assert router.reaches(prefill, 16999) == "forbidden"
    assert decode.reaches(prefill, 16999) == "forbidden", "KV flows one way"
    assert release.prometheus.reaches(prefill, 8081) == "open"
    assert release.prometheus.reaches(router, 8001) == "open"


def test_the_admin_port_asks_for_the_key_of_the_releases_secret(release: Release) -> None:
    url, key = release.router("/workers", 8001), release.secrets[NAME]["admin-api-key"]
    assert release.prometheus.ask(url)[0] == 401
    status, answer = release.prometheus.ask(url, "", [f"authorization: Bearer {key}"])
    assert status == 200
    assert {worker["name"] for worker in json.loads(answer)["workers"]} == {"p0", "d0"}


def test_every_panel_has_something_to_show_and_every_alert_can_be_evaluated(release: Release) -> None:
    """Prometheus stands behind the policies, and asks as the monitors say."""
    pods_of_release = list(release.pods.values())
    prometheus = Prometheus(release.prometheus, pods_of_release, release.objects, release.secrets)
    prometheus.until_all_are_up(5)
    queries = [
        target["expr"]
        for board in DASHBOARDS
        for panel in grafana(board)["panels"]
        for target in panel.get("targets", ())
    ]
    scaled = VALUES | {role: {"autoscaling": {"enabled": True}} for role in ("prefill", "decode")}
    queries += [each["spec"]["triggers"][0]["metadata"]["query"] for each in of_kind(template(scaled), "ScaledObject")]
    assert len(queries) > 40

    def empty() -> dict[str, str]:
        answer_of(release)  # what is counted per second goes on
        told = zip(queries, prometheus.get(*map(to_query, queries)), strict=True)
        return {query: str(said) for query, said in told if said["status"] != "success" or not said["data"]["result"]}

    def all_show_something() -> bool:
        print(left := empty())
        return not left

    eventually(all_show_something, "every panel shows something", LONG_S)

    def evaluated() -> bool:
        [told] = prometheus.get("rules")
        rules = [rule for group in told["data"]["groups"] for rule in group["rules"]]
        return len(rules) > 10 and all(rule["health"] == "ok" for rule in rules)

    eventually(evaluated, "every alert has been evaluated", LONG_S)


def test_the_preflight_of_a_rank_finds_nothing_wrong(release: Release) -> None:
    [host, *_] = release.of("decode")
    assert host.end.pod is not None
    [preflight] = host.end.pod.spec["initContainers"]
    process = host.start(preflight, release.secrets)
    assert process.wait(LONG_S) == 0, host.log()


def test_helm_test_passes(release: Release) -> None:
    host = release.one("test")
    release.start(host)
    assert host.processes[-1].wait(LONG_S) == 0, host.log()


def test_a_rank_that_is_killed_kills_nobody_and_its_group_serves_when_it_is_started_again(release: Release) -> None:
    [survivor, host] = release.of("decode")
    [rank] = [process for process in host.processes if process.poll() is None]
    rank.kill()
    rank.wait()
    ready, node = release.probe(survivor, "readiness"), release.net.node
    eventually(lambda: node.ask(ready)[0] == 503, "the other rank sees that its group is not whole", LONG_S)
    until_ready(survivor, release.probe(survivor, "liveness"), node)
    until_ready(survivor, release.probe(survivor, "startup"), node)
    assert node.ask(ready)[0] == 503
    release.start(host)
    until_ready(host, release.probe(host, "readiness"), release.net.node)
    until_ready(release.one("router"), release.probe(release.one("router"), "readiness"), release.net.node)
    eventually(lambda: answer_of(release) == expected(PROMPT, TOKENS), "the group serves again", LONG_S)


def test_a_release_that_is_deleted_ends_in_order(release: Release) -> None:
    """The last test: afterwards nothing runs."""
    serving = release.of("router", "prefill", "decode", "registry")
    running = [(host, process) for host in serving for process in host.processes if process.poll() is None]
    assert len(running) == len(serving)
    for _, process in running:
        process.terminate()
    for host, process in running:
        assert process.wait(LONG_S) == 0, host.log()
