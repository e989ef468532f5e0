"""What a cluster remembers of a request: asked of the router's admin port."""

import io
import urllib.error
import urllib.request
from typing import Any

import msgspec
from cluster import Cluster
from waiting import DEADLINE_S, eventually

from tandem.runtime.history import Attempt, Transfer

LATE = "did not answer within"
"""What the router says of a rank, or a rank of its loop, that had no time."""


def get(cluster: Cluster, path: str) -> bytes:
    """Of the admin port."""
    with urllib.request.urlopen(f"{cluster.admin_url}{path}", timeout=DEADLINE_S) as answer:
        content: bytes = answer.read()
    return content


def traced(cluster: Cluster, request_id: str) -> Transfer:
    """All of its attempts, as all ranks tell of them: where one did not answer in time, they are asked again."""
    return eventually(lambda: told_by_all(cluster, request_id), f"all ranks tell of {request_id}")


def told_by_all(cluster: Cluster, request_id: str) -> Transfer | None:
    try:
        told = msgspec.json.decode(get(cluster, f"/transfers/{request_id}"), type=Transfer)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
        if LATE in body.decode():
            return None
        raise urllib.error.HTTPError(error.url, error.code, error.msg, error.headers, io.BytesIO(body)) from None
    return None if any(LATE in cause for cause in told.silent.values()) else told


def entries(attempt: Attempt, kind: type[Any]) -> list[Any]:
    """Those of one kind, in order."""
    return [event.entry for event in attempt.events if isinstance(event.entry, kind)]
