"""Who may talk to whom: each edge that Tandem needs, and no other."""

import pytest
from chart import MATRIX, NAMESPACE, RELEASE, ROLES, Object, pods, rendered, template
from netpol import EVERY, End, allowed, end_of

EPHEMERAL, MOONCAKE = ("TCP", 32768, 60999), ("TCP", 15000, 17000)
HTTP, RANK_HTTP, ADMIN, REDIS = (("TCP", port, port) for port in (8000, 8081, 8001, 6379))
DNS = {("TCP", 53, 53), ("UDP", 53, 53)}

NEEDED = {
    ("router", "prefill"): {EPHEMERAL, RANK_HTTP},
    ("router", "decode"): {EPHEMERAL, RANK_HTTP},
    ("router", "colocated"): {EPHEMERAL, RANK_HTTP},
    ("prefill", "prefill"): {EPHEMERAL},
    ("decode", "decode"): {EPHEMERAL},
    ("colocated", "colocated"): {EPHEMERAL},
    ("prefill", "decode"): {MOONCAKE},
    ("decode", "prefill"): {EPHEMERAL},
    ("test", "router"): {HTTP},
    **{(who, "registry"): {REDIS} for who in ("router", *ROLES)},
}
"""Between pods of a release. Everything else is refused."""
CLOSED = [name for name in MATRIX if name != "open"]


def ends(objects: list[Object]) -> dict[str, End]:
    return {pod.component: end_of(pod, "10.0.0.1") for pod in pods(objects)}


@pytest.mark.parametrize("name", CLOSED)
def test_pods_of_a_release_reach_each_other_where_they_need_to_and_nowhere_else(name):
    objects = rendered(name)
    there = ends(objects)
    for source in there:
        for target in there:
            found = allowed(objects, there[source], there[target])
            assert found == NEEDED.get((source, target), set()), f"{source} to {target}"


@pytest.mark.parametrize("name", CLOSED)
def test_strangers_reach_the_routers_port_for_clients_and_nothing_else(name):
    objects = rendered(name)
    for stranger in (End("10.0.0.9", "elsewhere", {"app": "x"}), End("10.0.0.9", NAMESPACE, {"app": "x"})):
        for component, target in ends(objects).items():
            reached = allowed(objects, stranger, target)
            assert reached == ({HTTP} if component == "router" else set()), component


@pytest.mark.parametrize("name", CLOSED)
def test_prometheus_reads_metrics_if_it_is_told_who_that_is(name):
    objects = rendered(name)
    prometheus = End("10.0.0.9", "monitoring")
    told = name != "dressed"
    for component, target in ends(objects).items():
        ports = {
            "router": {HTTP, ADMIN} if told else {HTTP},
            **{role: {RANK_HTTP} if told else set() for role in ROLES},
        }
        assert allowed(objects, prometheus, target) == ports.get(component, set())


def test_operators_reach_the_admin_port_if_they_are_told_of():
    objects = rendered("dressed")
    router = ends(objects)["router"]
    assert allowed(objects, End(labels={"who": "me"}), router) == {HTTP, ADMIN}
    assert allowed(objects, End(labels={"who": "you"}), router) == {HTTP}


@pytest.mark.parametrize("name", CLOSED)
def test_pods_ask_for_names_and_reach_nothing_outside(name):
    objects = rendered(name)
    dns, internet = End("10.0.0.53", "kube-system", {"k8s-app": "kube-dns"}), End("198.51.100.1", outside=True)
    for component, source in ends(objects).items():
        assert allowed(objects, source, dns) == (set() if component == "registry" else DNS)
        assert allowed(objects, source, internet) == set(), component


def test_a_registry_of_ones_own_is_reached_where_it_is():
    objects = rendered("own registry and secrets")
    for component, source in ends(objects).items():
        redis = allowed(objects, source, End("10.0.0.7", outside=True))
        assert redis == ({("TCP", 6380, 6380)} if component != "test" else set())
        assert not allowed(objects, source, End("10.0.0.8", outside=True))


def test_what_the_operator_adds_is_let_out():
    extra = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 4317, "protocol": "TCP"}]}
    objects = template({"networkPolicy": {"extraEgress": [extra]}})
    collector = End("10.9.0.1", outside=True)
    found = {component: allowed(objects, source, collector) for component, source in ends(objects).items()}
    assert {component for component, ports in found.items() if ports == {("TCP", 4317, 4317)}} == {
        "router",
        "prefill",
        "decode",
    }


def test_two_releases_in_one_namespace_stay_apart():
    ours = template()
    other = ends(template(release="other"))["prefill"]
    assert other.labels["app.kubernetes.io/instance"] != RELEASE
    for component, target in ends(ours).items():
        assert allowed(ours, other, target) == ({HTTP} if component == "router" else set())


def test_without_policies_everything_is_open():
    objects = rendered("open")
    there = ends(objects)
    assert allowed(objects, there["router"], there["registry"]) == EVERY
