"""What a cluster remembers of a request: asked of the router's admin port."""

import urllib.request
from typing import Any

import msgspec
from cluster import Cluster
from waiting import DEADLINE_S

from tandem.runtime.history import Attempt, Transfer


def get(cluster: Cluster, path: str) -> bytes:
    """Of the admin port."""
    with urllib.request.urlopen(f"{cluster.admin_url}{path}", timeout=DEADLINE_S) as answer:
        content: bytes = answer.read()
    return content


def traced(cluster: Cluster, request_id: str) -> Transfer:
    """All of its attempts, as all ranks tell of them."""
    return msgspec.json.decode(get(cluster, f"/transfers/{request_id}"), type=Transfer)


def entries(attempt: Attempt, kind: type[Any]) -> list[Any]:
    """Those of one kind, in order."""
    return [event.entry for event in attempt.events if isinstance(event.entry, kind)]
