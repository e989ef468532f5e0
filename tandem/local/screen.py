"""What an operator sees of `tandem up`: its results on standard output, everything else on standard error."""

import contextlib
import json
import select
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.status import Status

NOISE = ("Logging before InitGoogleLogging() is written to STDERR", "] Local segment descriptor not found")


class Screen:
    """On a terminal what is waited for is shown in one line that changes; elsewhere each change is a line."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()

    def line(self, line: bytes) -> None:
        """A process of the cluster wrote it. What Mooncake cannot be told not to say is left out."""
        text = line.decode(errors="replace")
        if not any(noise in text for noise in NOISE):
            self._say(text)

    def notice(self, text: str) -> None:
        """Something happens, whether it was asked for or not."""
        self.close()
        self._say(f"tandem: {text}")

    def waiting(self, missing: str) -> None:
        """The cluster does not serve yet."""
        if self._status is None:
            self._say(f"tandem: waiting for {missing}")
        else:
            self._status.update(f"waiting for {missing}")

    def ready_again(self, facts: Mapping[str, Any]) -> None:
        """It serves again. The last line is for programs: pids and addresses have changed.

        A program that has stopped to read must not stop us: it is left out where it would have to wait.
        """
        if select.select([], [sys.stdout], [], 0)[1]:
            self._print(f"Tandem serves {self._model} again at {facts['url']}", ready_line(facts))

    def ready(self, facts: Mapping[str, Any]) -> None:
        """The cluster serves. The last line is for programs."""
        self.close()
        messages = [{"role": "user", "content": "Name three colours."}]
        body = json.dumps({"model": self._model, "messages": messages, "temperature": 0})
        url = f"{facts['url']}/v1/chat/completions"
        self._print(
            f"Tandem serves {self._model} at {facts['url']}",
            f"Try:   curl {url} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
            "Stop:  Ctrl-C",
            ready_line(facts),
        )

    def close(self) -> None:
        """Nothing changes in place from now on."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, *lines: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it: the cluster serves all the same
            print(*lines, sep="\n", flush=True)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._status is None:
                print(text, file=sys.stderr, flush=True)
            else:
                self._console.print(text, markup=False)


def ready_line(facts: Mapping[str, Any]) -> str:
    """What programs wait for."""
    return f"READY {json.dumps(facts)}"
