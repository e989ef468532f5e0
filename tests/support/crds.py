"""Strict schemas of kinds that Kubernetes itself does not have, as far as the chart uses them."""

from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate import utils
from referencing import Registry, Resource

Schema = dict[str, Any]

utils.schema_contents = cache(utils.schema_contents)  # it reads megabytes for every object

NEWEST, OLDEST = "1.37", "1.29"
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"


def core(name: str) -> Schema:
    """One of Kubernetes' own definitions, strict."""
    return {"$ref": f"{DEFINITIONS}#/$defs/{name}"}


def of(needed: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(needed), "properties": properties}


def some(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
COUNT: Schema = {"anyOf": [NUMBER, {"type": "string", "pattern": "^[0-9]+%$"}]}
WORDS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
SELECTOR = core("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")
META = core("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
DURATION: Schema = {"type": "string", "pattern": "^[0-9]+(ms|[smhd])$"}

LWS_SPEC = of(
    ("leaderWorkerTemplate",),
    replicas=NUMBER,
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    networkConfig=of(("subdomainPolicy",), subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
    rolloutStrategy=of(
        ("type",),
        type={"enum": ["RollingUpdate"]},
        rollingUpdateConfiguration=of(partition=NUMBER, maxUnavailable=COUNT, maxSurge=COUNT),
    ),
    leaderWorkerTemplate=of(
        ("workerTemplate",),
        size={"type": "integer", "minimum": 1},
        restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
        leaderTemplate=core("io.k8s.api.core.v1.PodTemplateSpec"),
        workerTemplate=core("io.k8s.api.core.v1.PodTemplateSpec"),
    ),
)
RELABEL = of(
    sourceLabels=some(TEXT),
    separator=TEXT,
    targetLabel=TEXT,
    regex=TEXT,
    modulus=NUMBER,
    replacement=TEXT,
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
)
ENDPOINT = of(
    port=TEXT,
    path=TEXT,
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=of(type=TEXT, credentials=core("io.k8s.api.core.v1.SecretKeySelector")),
    tlsConfig=of(insecureSkipVerify={"type": "boolean"}, serverName=TEXT),
    relabelings=some(RELABEL),
)
RULE = of(("expr", "alert"), alert=TEXT, expr=TEXT, labels=WORDS, annotations=WORDS, **{"for": DURATION})
SCALED = of(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=of(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
    minReplicaCount=NUMBER,
    maxReplicaCount=NUMBER,
    pollingInterval=NUMBER,
    cooldownPeriod=NUMBER,
    advanced=of(
        horizontalPodAutoscalerConfig=of(
            name=TEXT, behavior=core("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior")
        )
    ),
    triggers=some(of(("type", "metadata"), type={"enum": ["prometheus"]}, name=TEXT, metadata=WORDS)),
)
REF = of(("name",), group=TEXT, kind=TEXT, name=TEXT, namespace=TEXT, sectionName=TEXT, port=NUMBER)
ROUTE = of(
    ("parentRefs", "rules"),
    parentRefs=some(REF),
    hostnames=some(TEXT),
    rules=some(
        of(
            matches=some(of(path=of(type={"enum": ["Exact", "PathPrefix"]}, value=TEXT))),
            backendRefs=some(of(("name", "port"), name=TEXT, port=NUMBER, weight=NUMBER)),
            timeouts=of(request=DURATION, backendRequest=DURATION),
        )
    ),
)
MONITOR = {
    "selector": SELECTOR,
    "namespaceSelector": of(any={"type": "boolean"}, matchNames=some(TEXT)),
    "jobLabel": TEXT,
}
SPECS: dict[tuple[str, str], Schema] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): LWS_SPEC,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): of(("selector", "endpoints"), endpoints=some(ENDPOINT), **MONITOR),
    ("monitoring.coreos.com/v1", "PodMonitor"): of(
        ("selector", "podMetricsEndpoints"), podMetricsEndpoints=some(ENDPOINT), **MONITOR
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): of(
        ("groups",), groups=some(of(("name", "rules"), name=TEXT, interval=DURATION, rules=some(RULE)))
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): ROUTE,
}


def check(found: dict[str, Any], version: str) -> None:
    """Raises for an object that is not exactly what its schema allows, or is of a kind that nobody knows."""
    spec = SPECS.get((found["apiVersion"], found["kind"]))
    if spec is None:
        utils.validate(found, version, strict=True)
        return
    whole = of(("apiVersion", "kind", "metadata", "spec"), apiVersion=TEXT, kind=TEXT, metadata=META, spec=spec)
    definitions = utils.schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json", version)
    registry: Registry[Any] = Resource.from_contents(definitions) @ Registry()
    jsonschema.Draft202012Validator(whole, registry=registry).validate(found)
