"""What can only be said of one host by trying it: a port, the registry."""

import contextlib
import socket

import redis

from tandem.core.errors import ConfigError
from tandem.doctor.raw import family_of
from tandem.doctor.report import Finding, fail, ok, warn
from tandem.runtime.registry import Registry, redacted

CONNECT_S = 5.0


def try_port(host: str) -> Finding:
    """Bind a port that the system picks, and reach it."""
    try:
        with socket.create_server((host, 0), family=family_of(host)) as server:
            port: int = server.getsockname()[1]
            socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        return fail("own-port", f"{host}: {error}: give an address of this host that the others reach")
    return ok("own-port", f"{host}:{port} was bound and reached")


def try_registry(url: str, cluster: str, secret: bytes) -> Finding:
    """Read who is registered."""
    try:
        with contextlib.closing(Registry(url, cluster, secret)) as registry:
            members = registry.members()
    except ConfigError as error:
        return fail("registry", str(error))
    except redis.RedisError as error:
        return fail("registry", f"{redacted(url)}: {error}: start it, open its port, or correct --registry-url")
    said = f"{redacted(url)} answers; ranks of cluster {cluster} there: {len(members)}"
    if registry.ignored:
        return warn("registry", f"{said}; entries not signed with this --cluster-secret-file: {registry.ignored}")
    return ok("registry", said)
