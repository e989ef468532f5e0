"""Every release that the chart can render: each object by a strict schema, and all of them together."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from chart import (
    CHART,
    COMPONENT,
    MATRIX,
    NAMESPACE,
    ROLES,
    Object,
    Pod,
    named,
    of_kind,
    pod_template,
    pods,
    refusal,
    rendered,
    run_helm,
    secrets_of,
    selects,
    template,
)
from crds import NEWEST, OLDEST, SPECS, check

EVERY = pytest.mark.parametrize("name", MATRIX)


def templates(objects: list[Object]) -> list[tuple[Object, Object]]:
    """Whatever makes pods, with their template."""
    return [(found, made_of) for found in objects if (made_of := pod_template(found)) is not None]


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@EVERY
def test_helm_finds_nothing_to_say(name):
    values, files = MATRIX[name]
    done = run_helm(
        "lint", str(CHART), "--strict", *(word for file in files for word in ("-f", str(CHART / file))), values=values
    )
    assert done.returncode == 0, done.stdout


@EVERY
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_what_its_schema_allows(name, version):
    for found in rendered(name):
        check(found, version)


def test_a_kind_that_nobody_knows_and_a_field_that_is_not_there_are_refused():
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        check({"apiVersion": "tandem/v1", "kind": "Ring", "metadata": {"name": "r"}}, NEWEST)
    for kind in {kind for _, kind in SPECS} | {"Deployment", "NetworkPolicy"}:
        found = next(found for name in MATRIX for found in of_kind(rendered(name), kind))
        with pytest.raises(jsonschema.ValidationError):
            check({**found, "spec": {**found["spec"], "noSuchField": 1}}, NEWEST)
    pod = named(rendered("default"), "LeaderWorkerSet", "rel-tandem-prefill")["spec"]["leaderWorkerTemplate"]
    broken = {**pod, "workerTemplate": {**pod["workerTemplate"], "spec": {"container": []}}}
    spec = {"leaderWorkerTemplate": broken}
    with pytest.raises(jsonschema.ValidationError, match="container"):
        check(
            {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {}, "spec": spec},
            NEWEST,
        )


@EVERY
def test_names_are_unique_and_everything_is_in_the_releases_namespace(name):
    objects = rendered(name)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)
    assert {found["metadata"]["namespace"] for found in objects} == {NAMESPACE}
    assert all(len(each) <= 63 for _, each in names)


def test_a_long_name_leaves_room_for_what_is_added_to_it():
    objects = template({"workload": {"kind": "statefulset"}}, release="r" * 53)
    assert max(len(found["metadata"]["name"]) for found in objects) <= 63


@EVERY
def test_whatever_makes_pods_selects_them_and_no_others(name):
    objects = rendered(name)
    made = {found["metadata"]["name"]: made_of["metadata"]["labels"] for found, made_of in templates(objects)}
    for found in of_kind(objects, "Deployment", "StatefulSet"):
        chosen = [each for each, labels in made.items() if selects(found["spec"]["selector"], labels)]
        assert chosen == [found["metadata"]["name"]]


@EVERY
def test_services_have_pods_with_the_ports_that_they_name(name):
    objects = rendered(name)
    for service in of_kind(objects, "Service"):
        behind = [pod for pod in pods(objects) if selects({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        assert behind
        assert len({pod.component for pod in behind}) == 1
        for port in service["spec"]["ports"]:
            assert all(pod.port(port["targetPort"]) for pod in behind)


@EVERY
def test_disruption_budgets_and_monitors_find_their_pods(name):
    objects = rendered(name)
    there = pods(objects)
    budgets = of_kind(objects, "PodDisruptionBudget")
    for budget in budgets:
        assert len({pod.component for pod in there if selects(budget["spec"]["selector"], pod.labels)}) == 1
    covered = {pod.component for pod in there for budget in budgets if selects(budget["spec"]["selector"], pod.labels)}
    assert covered >= {pod.component for pod in there} & set(ROLES)
    for monitor in of_kind(objects, "PodMonitor"):
        chosen = [pod for pod in there if selects(monitor["spec"]["selector"], pod.labels)]
        assert {pod.component for pod in chosen} == {pod.component for pod in there} & set(ROLES)
        assert all(pod.port(monitor["spec"]["podMetricsEndpoints"][0]["port"]) for pod in chosen)
    for monitor in of_kind(objects, "ServiceMonitor"):
        [service] = [
            one
            for one in of_kind(objects, "Service")
            if selects(monitor["spec"]["selector"], one["metadata"]["labels"])
        ]
        assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


@EVERY
def test_what_is_scaled_or_routed_to_is_there(name):
    objects = rendered(name)
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        scaled = named(objects, target["kind"], target["name"])
        assert scaled["apiVersion"] == target["apiVersion"]
        assert "replicas" not in scaled["spec"], "an upgrade would undo what the scaler has done"
    backends = [
        (path["backend"]["service"]["name"], path["backend"]["service"]["port"]["name"])
        for ingress in of_kind(objects, "Ingress")
        for rule in ingress["spec"]["rules"]
        for path in rule["http"]["paths"]
    ]
    for service, port in backends:
        assert port in [each["name"] for each in named(objects, "Service", service)["spec"]["ports"]]
    for route in of_kind(objects, "HTTPRoute"):
        for backend in route["spec"]["rules"][0]["backendRefs"]:
            ports = named(objects, "Service", backend["name"])["spec"]["ports"]
            assert backend["port"] in [each["port"] for each in ports]


GIVEN = {
    "own": {"cluster-secret", "admin-api-key"},
    "redis": {"u"},
    "cert": {"tls.crt", "tls.key"},
    "key": {"api-key"},
    "tenants": {"keys.json"},
}
"""Secrets that the matrix says are there, with their keys."""


def wanted_secrets(spec: Object) -> Iterator[tuple[str, str]]:
    for container in containers(spec):
        for entry in container.get("env", ()):
            if reference := entry.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"], reference["key"]
    for volume in spec.get("volumes", ()):
        if secret := volume.get("secret"):
            yield from ((secret["secretName"], item["key"]) for item in secret.get("items", ()))


@EVERY
def test_every_secret_that_a_pod_names_exists_with_its_key(name):
    objects = rendered(name)
    there = {
        found["metadata"]["name"]: {*(found.get("data") or ()), *(found.get("stringData") or ())}
        for found in of_kind(objects, "Secret")
    }
    for _, made_of in templates(objects):
        for secret, key in wanted_secrets(made_of["spec"]):
            assert key in (there | GIVEN)[secret]
    for monitor in of_kind(objects, "ServiceMonitor"):
        credentials = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]
        assert credentials["key"] in (there | GIVEN)[credentials["name"]]


@EVERY
def test_volumes_and_mounts_belong_together(name):
    for _, made_of in templates(rendered(name)):
        spec = made_of["spec"]
        volumes = [volume["name"] for volume in spec.get("volumes", ())]
        assert len(set(volumes)) == len(volumes)
        mounted = {mount["name"] for each in containers(spec) for mount in each.get("volumeMounts", ())}
        assert mounted == set(volumes)


@EVERY
def test_every_pod_is_restricted_as_far_as_it_can_be(name):
    rdma = name == "rdma"
    for found, made_of in templates(rendered(name)):
        spec = made_of["spec"]
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        rank = made_of["metadata"]["labels"][COMPONENT] in ROLES
        for container in containers(spec):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, found["metadata"]["name"]
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if rdma and rank else {})}
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()


def rank_pods(objects: list[Object]) -> list[Pod]:
    return [pod for pod in pods(objects) if pod.component in ROLES]


@EVERY
def test_ranks_have_memory_for_hidden_states_and_files_for_what_they_leave(name):
    for pod in rank_pods(rendered(name)):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod.spec["containers"][0]["volumeMounts"]}
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert {"/tmp", "/var/lib/tandem", "/etc/tandem/cluster"} <= mounts.keys()
        secret = mounts["/etc/tandem/cluster"]["secret"]
        assert secret["defaultMode"] == 0o440, "root's, lent to the pod's group"


def test_rdma_asks_for_its_device_wherever_it_is_used():
    for pod in rank_pods(rendered("rdma")):
        for container in containers(pod.spec):
            assert container["resources"]["limits"]["rdma/ib"] == "1"
            assert container["resources"]["requests"]["rdma/ib"] == "1"
            assert "--transport-protocol=rdma" in container["args"]
    assert "rdma/ib" not in str(rendered("tcp"))


@EVERY
def test_a_lost_rank_comes_back_alone_and_nobody_waits_for_another_to_start(name):
    for found in of_kind(rendered(name), "LeaderWorkerSet"):
        assert found["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "None"
        assert found["spec"]["startupPolicy"] == "LeaderCreated"
    for found in of_kind(rendered(name), "StatefulSet"):
        assert found["spec"]["podManagementPolicy"] == "Parallel"
        assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
        service = named(rendered(name), "Service", found["spec"]["serviceName"])
        assert service["spec"]["publishNotReadyAddresses"] is True


@EVERY
def test_probes_and_the_end_leave_the_time_that_is_needed(name):
    objects = rendered(name)
    for pod in pods(objects):
        if pod.component in (*ROLES, "router"):
            [container] = pod.spec["containers"]
            drain_s = float(next(word for word in container["args"] if word.startswith("--drain-s=")).partition("=")[2])
            before_s = (
                float(container["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in container else 0.0
            )
            assert ("lifecycle" in container) is (pod.component == "router")
            assert pod.spec["terminationGracePeriodSeconds"] >= drain_s + before_s + 10
            probes = {
                kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")
            }
            started = "/livez" if pod.component == "router" else "/startupz"
            assert probes == {"startup": started, "readiness": "/readyz", "liveness": "/livez"}
        if pod.component in ROLES:
            startup = container["startupProbe"]
            assert startup["failureThreshold"] * startup["periodSeconds"] >= 1800


@EVERY
def test_one_image_runs_everything(name):
    images = {
        container["image"] for _, made_of in templates(rendered(name)) for container in containers(made_of["spec"])
    }
    assert len(images) == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prefil": {}}, "prefil"),
    ({"prefill": {"groups": -1}}, "groups"),
    ({"ranks": {"flags": {"num-page": 1}}}, "num-page"),
    ({"ranks": {"flags": {"page-size": 0}}}, "page-size"),
    ({"ranks": {"flags": {"page-size": 4097}}}, "page-size"),
    ({"ranks": {"flags": {"bind": "0.0.0.0"}}}, "bind"),
    ({"ranks": {"flags": {"peers": "h:1"}}}, "peers"),
    ({"ranks": {"flags": {"transport-protocol": "udp"}}}, "transport-protocol"),
    ({"ranks": {"flags": {"disaggregation-transfer-backend": "shm"}}}, "disaggregation-transfer-backend"),
    ({"router": {"flags": {"api-key": "k"}}}, "api-key"),
    ({"router": {"flags": {"policy": "random"}}}, "policy"),
    ({"workload": {"kind": "daemonset"}}, "kind"),
    ({"monitoring": {"rules": {"firstTokenSeconds": 3}}}, "firstTokenSeconds"),
    ({"security": {"runAsUser": 0}}, "runAsUser"),
    ({"image": {"tag": 1}}, "tag"),
    ({"prefill": {"groups": 0}}, "neither role serves without the other"),
    ({"prefill": {"groups": 0}, "decode": {"groups": 0}}, "at least 1"),
    ({"registry": {"bundled": {"enabled": False}}}, "registry.existingSecret"),
    ({"workload": {"kind": "statefulset"}, "decode": {"autoscaling": {"enabled": True}}}, "change decode.groups"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED)
def test_values_that_cannot_be_are_refused_by_name(values, said):
    assert re.search(re.escape(said), refusal(values))


def test_secrets_are_drawn_long_and_anew():
    one, other = (secrets_of(template()) for _ in range(2))
    for name, keys in one.items():
        for key, value in keys.items():
            assert len(value) >= 40
            assert value != other[name][key]


def test_passwords_are_nowhere_but_in_secrets():
    objects = template()
    held = [value for keys in secrets_of(objects).values() for key, value in keys.items() if key != "valkey.conf"]
    rest = str([found for found in objects if found["kind"] != "Secret"])
    assert not [value for value in held if value in rest]
