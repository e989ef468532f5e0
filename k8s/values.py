"""What a Topology is in the words of the chart: the same flags that `tandem up` gives to its processes."""

from typing import Any

from tandem.core.commands import (
    StartOptions,
    Value,
    rank_flags,
    router_flags,
    router_options,
    topology_options,
)
from tandem.core.config import Group, RoleName, Topology
from tandem.core.errors import ConfigError

Values = dict[str, Any]

PLACE = frozenset(
    (
        *("cluster", "cluster-secret-file", "drain-s", "model", "served-model-name"),
        *("group", "rank", "pp-size", "run-dir", "dump-dir", "bind", "http-host", "http-port"),
        *("host", "port", "admin-host", "admin-port", "api-keys-file", "tls-cert-path", "tls-key-path"),
    )
)
"""Flags that the chart writes itself: where a process is, and what its pod has mounted."""
NEVER = frozenset(
    ("registry-url", "peers", "api-key", "admin-api-key", "supervised", "disaggregation-transfer-backend")
)
"""Flags that no pod is given: secrets come in the environment, such as the registry's URL, which leaves no room for a
list of peers; nobody supervises; and shm ends at a host's border.
"""


def values_of(topology: Topology, start: StartOptions) -> Values:
    """Values for the chart. Raises ConfigError for a topology that no release can be.

    Of `start`, the places do not matter: pods have their own.
    """
    if topology.transfer_backend != "mooncake":
        raise ConfigError(
            f"--disaggregation-transfer-backend is {topology.transfer_backend}: pods share no memory, use mooncake"
        )
    shapes = {role: shape_of(topology, role) for role in RoleName}
    ranks = rank_flags(topology_options(topology, start)[0])
    return {
        "cluster": topology.cluster,
        "drainSeconds": start.drain_s,
        "model": {"path": topology.model, "name": start.served_model_name},
        "ranks": {"flags": _told(ranks, {"pp-partition"})},
        "router": {"flags": _told(router_flags(router_options(topology, start)))},
        **{role.value: _role(shape, groups) for role, (shape, groups) in shapes.items()},
    }


def shape_of(topology: Topology, role: RoleName) -> tuple[Group | None, int]:
    """The one shape of a role's groups, and how many they are. Raises ConfigError when they differ."""
    groups = [group for group in topology.groups if group.role is role]
    partitions = {group.partition for group in groups}
    if len(partitions) > 1:
        raise ConfigError(f"{role.value} groups differ in their partition: a release has one shape for each role")
    return (groups[0] if groups else None), len(groups)


def _role(shape: Group | None, groups: int) -> Values:
    if shape is None:
        return {"groups": 0}
    partition = ",".join(map(str, shape.partition))
    return {"groups": groups, "ppSize": shape.size, "flags": {"pp-partition": partition}}


def _told(flags: dict[str, Value], but: set[str] | None = None) -> dict[str, Value]:
    """What has to be said: neither the chart's own flags, nor empty ones, nor switches that are off."""
    own = PLACE | NEVER | (but or set())
    return {name: value for name, value in flags.items() if name not in own and value != "" and value is not False}
