"""Streams one completion over HTTP and notes when each token comes."""

import contextlib
import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ANSWER_S = 300.0
EVENT = b"data: "
END = b"[DONE]"


@dataclass(frozen=True)
class Timing:
    """Seconds from the first byte of the request. An event may carry more than one token."""

    first_s: float
    last_s: float
    tokens: int

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second after the first one."""
        return (self.tokens - 1) / (self.last_s - self.first_s)


class Client:
    """A new connection for each request: the server closes one that is idle. Connecting is not timed."""

    def __init__(self, url: str, model: str) -> None:
        self._address = urlsplit(url).netloc
        self._model = model

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Timing:
        """Exactly `max_tokens` tokens, greedy. Raises ConnectionError for any other answer."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(self._address, timeout=ANSWER_S)
        connection.connect()
        with contextlib.closing(connection):
            timing = _timed(connection, json.dumps(body).encode())
        if timing.tokens != max_tokens:
            raise ConnectionError(f"{timing.tokens} tokens came, {max_tokens} were asked for")
        return timing


def _timed(connection: http.client.HTTPConnection, content: bytes) -> Timing:
    start_s = time.perf_counter()
    connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise ConnectionError(f"status {answer.status}: {answer.read().decode(errors='replace')}")
    times_s, tokens = [], 0
    while line := answer.readline():
        if not line.startswith(EVENT) or line.strip().endswith(END):
            continue
        now_s, event = time.perf_counter() - start_s, json.loads(line.removeprefix(EVENT))
        if "error" in event:
            raise ConnectionError(str(event["error"]))
        if event["choices"]:
            times_s.append(now_s)
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    return Timing(times_s[0], times_s[-1], tokens)
