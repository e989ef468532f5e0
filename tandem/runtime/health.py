"""Every rank's own HTTP port: /livez, /readyz, /state, /timelines, /metrics, /member. Most of it asks the tick loop."""

import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tandem.core.errors import ConfigError
from tandem.core.ids import RequestId
from tandem.runtime.exposition import CONTENT_TYPE

State = dict[str, Any]
Reply = tuple[int, bytes]
"""A status and a body in JSON."""
OK = 200
BAD_REQUEST = 400
NOT_FOUND = 404
UNAVAILABLE = 503

SERVER = "tandem-rank"
"""What this port calls itself: who takes it for a router's can be told so."""
ANSWER_S = 2.0
"""The tick loop must answer within this time to count as alive."""
NO_ANSWER: State = {"error": f"the tick loop did not answer within {ANSWER_S:.0f} s"}
TIMELINES, METRICS, MEMBER = "/timelines", "/metrics", "/member"
RID = re.compile("[0-9a-f]{16}")
SINCE = re.compile(r"/timelines\?since_us=([0-9]{1,18})")
"""Only what has changed since then, by the rank's own clock: whoever asks again and again."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the port is asked for, each on a thread of its own; the argument is how many seconds it may take.

    `state` is the tick loop's, `timelines` what it remembers of one request, or in short of all that have changed since
    a time in us; both None when it did not answer in time. `metrics` is Prometheus's text; it has less in it then.
    `entry` is what peers without a registry are told of this rank; empty: nothing.
    """

    state: Callable[[float], State | None]
    timelines: Callable[[RequestId | None, float, int], Reply | None]
    metrics: Callable[[float], bytes]
    entry: Callable[[], bytes] = bytes


class Health:
    """Serves on a thread of its own. Raises ConfigError when the port cannot be had."""

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        handler = type("Handler", (_Handler,), {"answers": answers})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise ConfigError(
                f"cannot serve /livez on {host}:{port}: {error.strerror}; choose another --http-port"
            ) from None
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.socket.shutdown(socket.SHUT_RD)  # wakes its thread, which looks only twice a second
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has left before the answer, as a router does that is not answered in time: not worth a line."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    answers: Answers
    timeout = 5

    def do_GET(self) -> None:
        """Live: the loop answers. Ready: its ring has formed. Started: its weights are loaded."""
        if self.path in ("/livez", "/readyz", "/startupz", "/state"):
            self._answer_state()
        elif (since := SINCE.fullmatch(self.path)) is not None:
            self._reply(self.answers.timelines(None, ANSWER_S, int(since[1])))
        elif self.path == TIMELINES or self.path.startswith(f"{TIMELINES}/"):
            self._answer_timelines(self.path.removeprefix(TIMELINES).removeprefix("/"))
        elif self.path == METRICS:
            self._send(OK, self.answers.metrics(ANSWER_S), CONTENT_TYPE)
        elif self.path == MEMBER and (entry := self.answers.entry()):
            self._send(OK, entry, "application/octet-stream")
        else:
            there = f"/livez, /readyz, /state, {TIMELINES} or {METRICS}"
            self._answer(NOT_FOUND, {"error": f"no {self.path} here: try {there}"})

    def _answer_state(self) -> None:
        state = self.answers.state(ANSWER_S)
        if state is None:
            self._answer(UNAVAILABLE, NO_ANSWER)
        elif self.path == "/readyz" and not state["ready"]:
            self._answer(UNAVAILABLE, {"error": "not ready", "waiting_for": state["waiting_for"]})
        elif self.path == "/startupz" and not state["loaded"]:
            self._answer(UNAVAILABLE, {"error": "not started", "waiting_for": state["waiting_for"]})
        else:
            self._answer(OK, state if self.path == "/state" else {"status": "ok"})

    def _answer_timelines(self, wanted: str) -> None:
        """Of one request, by its id in hex, or an overview of all."""
        rid = int(wanted, 16) if RID.fullmatch(wanted) else None
        if wanted and rid is None:
            self._answer(BAD_REQUEST, {"error": f"{wanted[:64]!r} is no request: give 16 hex digits"})
            return
        self._reply(self.answers.timelines(None if rid is None else RequestId(rid), ANSWER_S, 0))

    def _reply(self, reply: Reply | None) -> None:
        if reply is None:
            self._answer(UNAVAILABLE, NO_ANSWER)
        else:
            self._send(*reply)

    def _answer(self, status: int, body: State) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """The Server header."""
        return SERVER

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not worth a line."""
