"""Requests to a running cluster."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from cluster import Cluster
from waiting import DEADLINE_S


def asking(cluster: Cluster, body: dict[str, Any]) -> HTTPConnection:
    """A streaming completion that has been asked for; nothing of its answer has been read. Closing it hangs up."""
    connection = HTTPConnection(urlsplit(cluster.url).netloc, timeout=DEADLINE_S)
    content = json.dumps({"model": model_of(cluster), "stream": True, "temperature": 0, **body})
    connection.request("POST", "/v1/completions", content, {"content-type": "application/json"})
    return connection


@contextlib.contextmanager
def stream(cluster: Cluster, body: dict[str, Any]) -> Iterator[HTTPResponse]:
    """An open streaming completion; leaving the block hangs up."""
    connection = asking(cluster, body)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data events of a stream, up to [DONE]."""
    while line := response.readline():
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line.removeprefix(b"data: "))


def model_of(cluster: Cluster) -> str:
    with urllib.request.urlopen(f"{cluster.url}/v1/models", timeout=DEADLINE_S) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name
