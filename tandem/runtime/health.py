"""Every rank's own HTTP port: /livez, /readyz, /state. Answers come from the tick loop, so they prove that it runs."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tandem.core.errors import ConfigError

State = dict[str, Any]

SERVER = "tandem-rank"
"""What this port calls itself: who takes it for a router's can be told so."""
ANSWER_S = 2.0
"""The tick loop must answer within this time to count as alive."""


class Health:
    """Serves on a thread of its own. Raises ConfigError when the port cannot be had.

    `ask` returns the tick loop's state, or None when it did not answer in time.
    """

    def __init__(self, host: str, port: int, ask: Callable[[float], State | None]) -> None:
        handler = type("Handler", (_Handler,), {"ask": staticmethod(ask)})
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
    timeout = 5

    def do_GET(self) -> None:
        """Live: the loop answers. Ready: its ring has formed."""
        if self.path not in ("/livez", "/readyz", "/state"):
            self._answer(404, {"error": f"no {self.path} here: try /livez, /readyz or /state"})
            return
        state = self.ask(ANSWER_S)
        if state is None:
            self._answer(503, {"error": f"the tick loop did not answer within {ANSWER_S:.0f} s"})
        elif self.path == "/readyz" and not state["ready"]:
            self._answer(503, {"error": "not ready", "waiting_for": state["waiting_for"]})
        else:
            self._answer(200, state if self.path == "/state" else {"status": "ok"})

    def _answer(self, status: int, body: State) -> None:
        content = json.dumps(body).encode()
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
