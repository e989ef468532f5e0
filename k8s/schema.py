"""`python -m k8s.schema` writes the chart's values.schema.json: flags as the real command line reads them."""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from k8s.values import NEVER, PLACE
from tandem import cli
from tandem.core.config import BOUNDS
from tandem.runtime.metrics_table import FIRST_TOKEN_S

Schema = dict[str, Any]

PATH = Path(__file__).parent / "chart" / "values.schema.json"
TEXT: Schema = {"type": "string"}
WORD: Schema = {"type": "string", "minLength": 1}
SWITCH: Schema = {"type": "boolean"}
WORDS: Schema = {"type": "object", "additionalProperties": TEXT}
ANY: Schema = {"type": "object"}
LIST: Schema = {"type": "array", "items": {"type": "object"}}
SECONDS: Schema = {"type": "number", "minimum": 0}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9.]+([KMGT]i?|m)?$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$|^$"}
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def one_of(*words: str) -> Schema:
    """One of these."""
    return {"type": "string", "enum": list(words)}


def whole(least: int = 0) -> Schema:
    """A number of something."""
    return {"type": "integer", "minimum": least}


def of(**properties: Schema) -> Schema:
    """An object that has these properties at most: what is misspelt is refused."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def flags_of(command: str) -> Schema:
    """The flags that a role's `flags` may hold, with the bounds of the command line."""
    found = {}
    for option in typer.main.get_command(cli.app).commands[command].params:  # type: ignore[attr-defined]
        for name in (word.removeprefix("--") for word in (*option.opts, *option.secondary_opts)):
            if name not in PLACE | NEVER:
                found[name] = flag(option, name)
    return of(**dict(sorted(found.items())))


def flag(option: Any, name: str) -> Schema:
    """What one flag may be."""
    kind = next((each for each in get_args(option.type_descriptor.annotation) if each in KINDS), None)
    kind = kind or option.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    most = next((most for each, _, most in BOUNDS.values() if each == name), option.max)
    bounds = {"minimum": option.min, "maximum": most}
    about = {key: value for key, value in bounds.items() if value is not None}
    return {"type": KINDS[kind], **about, "description": option.help}


SCHEDULING = {
    "nodeSelector": WORDS,
    "tolerations": LIST,
    "affinity": ANY,
    "topologySpreadConstraints": LIST,
    "priorityClassName": NAME,
    "runtimeClassName": NAME,
}
PODS = {"annotations": WORDS, "podAnnotations": WORDS, "podLabels": WORDS, **SCHEDULING}
RESOURCES = of(requests=ANY, limits=ANY, claims=LIST)
PORTS = of(first=PORT, last=PORT)
COUNT_OR_PERCENT: Schema = {"anyOf": [whole(), {"type": "string", "pattern": r"^[0-9]+%$"}]}


def role(command: str) -> Schema:
    """The groups of one role."""
    return of(
        groups=whole(),
        ppSize=whole(1),
        flags=flags_of(command),
        resources=RESOURCES,
        rollout=of(maxUnavailable=COUNT_OR_PERCENT, maxSurge=COUNT_OR_PERCENT),
        autoscaling=of(
            enabled=SWITCH, minGroups=whole(1), maxGroups=whole(1), prometheus=WORD, threshold={"type": "number"}
        ),
        **PODS,
    )


def router() -> Schema:
    """The routers."""
    return of(
        replicas=whole(1),
        flags=flags_of("router"),
        preStopSeconds=whole(),
        resources=RESOURCES,
        service=of(type=one_of("ClusterIP", "NodePort", "LoadBalancer"), port=PORT, annotations=WORDS),
        apiKey=of(existingSecret=NAME, existingSecretKey=WORD),
        apiKeys=of(existingSecret=NAME, existingSecretKey=WORD),
        tls=of(existingSecret=NAME),
        autoscaling=of(enabled=SWITCH, minReplicas=whole(1), maxReplicas=whole(1), cpuPercent=whole(1)),
        env=LIST,
        **PODS,
    )


def ranks() -> Schema:
    """What ranks of all roles have."""
    return of(
        flags=flags_of("prefill"),
        httpPort=PORT,
        mooncakePorts=PORTS,
        preflight=SWITCH,
        startupSeconds=whole(5),
        shm=of(sizeLimit=QUANTITY),
        dumps=of(volume=ANY),
        env=LIST,
        podAnnotations=WORDS,
    )


def monitoring() -> Schema:
    """What Prometheus and Grafana are given."""
    share = {"type": "number", "minimum": 0, "maximum": 1}
    return of(
        monitors=of(enabled=SWITCH, interval={"type": "string", "pattern": "^[0-9]+[sm]$"}, labels=WORDS),
        rules=of(
            enabled=SWITCH,
            labels=WORDS,
            runbook=WORD,
            firstTokenSeconds={"type": "number", "enum": list(FIRST_TOKEN_S)},
            goodput=share,
            minRequestsPerSecond=SECONDS,
            heldSeconds=SECONDS,
            registrySeconds=SECONDS,
        ),
        dashboards=of(enabled=SWITCH, labels=WORDS, annotations=WORDS),
    )


def values_schema() -> Schema:
    """The whole of it."""
    peers = {"type": "array", "items": of(namespaceSelector=ANY, podSelector=ANY, ipBlock=ANY)}
    top = of(
        nameOverride=NAME,
        fullnameOverride=NAME,
        image=of(repository=WORD, tag=TEXT, digest=TEXT, pullPolicy=one_of("Always", "IfNotPresent", "Never")),
        imagePullSecrets={"type": "array", "items": of(name=WORD)},
        cluster=TEXT,
        drainSeconds={"type": "number", "minimum": 0, "maximum": 86400},
        model=of(path=TEXT, name=TEXT, mountPath=WORD, volume=ANY),
        workload=of(kind=one_of("lws", "statefulset")),
        ranks=ranks(),
        prefill=role("prefill"),
        decode=role("decode"),
        colocated=role("colocated"),
        router=router(),
        ingress=of(enabled=SWITCH, className=NAME, annotations=WORDS, hosts={"type": "array", "items": WORD}, tls=LIST),
        httpRoute=of(enabled=SWITCH, parentRefs=LIST, hostnames={"type": "array", "items": WORD}, requestTimeout=WORD),
        registry=of(
            bundled=of(enabled=SWITCH, resources=RESOURCES, **SCHEDULING), existingSecret=NAME, existingSecretKey=WORD
        ),
        secrets=of(existingSecret=NAME),
        rdma=of(enabled=SWITCH, resource=WORD, count=whole(1)),
        tmp=of(sizeLimit=QUANTITY),
        security=of(runAsUser=whole(1), runAsGroup=whole(1), supplementalGroups={"type": "array", "items": whole()}),
        scheduling=of(**SCHEDULING),
        networkPolicy=of(
            enabled=SWITCH,
            clients=peers,
            operators=peers,
            prometheus=peers,
            dns=of(to=peers),
            registry=of(port=PORT, to=peers),
            ephemeralPorts=PORTS,
            extraEgress=LIST,
        ),
        monitoring=monitoring(),
    )
    top["properties"]["global"] = ANY  # Helm's own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top}


def main() -> None:
    """Write the file."""
    PATH.write_text(json.dumps(values_schema(), indent=1) + "\n")


if __name__ == "__main__":
    main()
