"""Every rank's own HTTP port: /livez, /readyz, /state, /timelines. Answers come from the tick loop, so it runs."""

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tandem.core.errors import ConfigError
from tandem.core.ids import RequestId

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
TIMELINES = "/timelines"
RID = re.compile("[0-9a-f]{16}")


class Health:
    """Serves on a thread of its own. Raises ConfigError when the port cannot be had.

    `ask` returns the tick loop's state, `timelines` what it remembers of one request, or of all in short; both None
    when it did not answer in time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        ask: Callable[[float], State | None],
        timelines: Callable[[RequestId | None, float], Reply | None],
    ) -> None:
        handler = type("Handler", (_Handler,), {"ask": staticmethod(ask), "timelines": staticmethod(timelines)})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
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
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    ask: Callable[[float], State | None]
    timelines: Callable[[RequestId | None, float], Reply | None]
    timeout = 5

    def do_GET(self) -> None:
        """Live: the loop answers. Ready: its ring has formed."""
        if self.path in ("/livez", "/readyz", "/state"):
            self._answer_state()
        elif self.path == TIMELINES or self.path.startswith(f"{TIMELINES}/"):
            self._answer_timelines(self.path.removeprefix(TIMELINES).removeprefix("/"))
        else:
            self._answer(NOT_FOUND, {"error": f"no {self.path} here: try /livez, /readyz, /state or {TIMELINES}"})

    def _answer_state(self) -> None:
        state = self.ask(ANSWER_S)
        if state is None:
            self._answer(UNAVAILABLE, NO_ANSWER)
        elif self.path == "/readyz" and not state["ready"]:
            self._answer(UNAVAILABLE, {"error": "not ready", "waiting_for": state["waiting_for"]})
        else:
            self._answer(OK, state if self.path == "/state" else {"status": "ok"})

    def _answer_timelines(self, wanted: str) -> None:
        """Of one request, by its id in hex, or an overview of all."""
        rid = int(wanted, 16) if RID.fullmatch(wanted) else None
        if wanted and rid is None:
            self._answer(BAD_REQUEST, {"error": f"{wanted[:64]!r} is no request: give 16 hex digits"})
            return
        reply = self.timelines(None if rid is None else RequestId(rid), ANSWER_S)
        if reply is None:
            self._answer(UNAVAILABLE, NO_ANSWER)
        else:
            self._send(*reply)

    def _answer(self, status: int, body: State) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """The Server header."""
        return SERVER

    def log_message(self, format: str, *args: object) -> None:
        """Probes are not worth a line."""
