"""What NetworkPolicies let through: a pod that one selects may do only what one says."""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from chart import NAMESPACE, Object, Pod, of_kind, selects

Ports = set[tuple[str, int, int]]
"""(protocol, first, last)."""
EVERY: Ports = {("TCP", 1, 65535), ("UDP", 1, 65535)}


@dataclass
class End:
    """Somebody who may talk: a pod, here or in another namespace, or an address outside."""

    ip: str = ""
    namespace: str = NAMESPACE
    labels: dict[str, str] = field(default_factory=dict)
    pod: Pod | None = None
    outside: bool = False

    def port(self, name: str | int) -> int:
        return name if isinstance(name, int) else self.pod.port(name) if self.pod else 0


def end_of(pod: Pod, ip: str = "") -> End:
    return End(ip, NAMESPACE, pod.labels, pod)


def allowed(objects: list[Object], source: End, target: End) -> Ports:
    """The ports of `target` that `source` may open."""
    policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]
    leaves = _one_way(policies, source, target, target, "Egress")
    enters = _one_way(policies, target, source, target, "Ingress")
    return {
        (protocol, max(first, low), min(last, high))
        for protocol, first, last in leaves
        for other, low, high in enters
        if protocol == other and max(first, low) <= min(last, high)
    }


def _one_way(policies: list[Object], mine: End, other: End, target: End, way: str) -> Ports:
    own = [
        policy
        for policy in policies
        if mine.namespace == NAMESPACE
        and not mine.outside
        and way in policy["policyTypes"]
        and selects(policy["podSelector"], mine.labels)
    ]
    if not own:
        return EVERY
    peers = "to" if way == "Egress" else "from"
    found: Ports = set()
    for rule in (rule for policy in own for rule in policy.get(way.lower(), ())):
        if peers not in rule or any(_is_peer(peer, other) for peer in rule[peers]):
            found |= {_port(port, target) for port in rule["ports"]} if "ports" in rule else EVERY
    return {(protocol, first, last) for protocol, first, last in found if first}


def _is_peer(peer: dict[str, Any], other: End) -> bool:
    if "ipBlock" in peer:
        return ipaddress.ip_address(other.ip) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
    if other.outside:
        return False
    if "namespaceSelector" in peer:
        near = selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        near = other.namespace == NAMESPACE
    return near and selects(peer.get("podSelector", {}), other.labels)


def _port(port: dict[str, Any], target: End) -> tuple[str, int, int]:
    first = target.port(port["port"])
    return port.get("protocol", "TCP"), first, port.get("endPort", first)
