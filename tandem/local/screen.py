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

BAR = 24
"""Columns."""
NOISE = ("Logging before InitGoogleLogging() is written to STDERR", "] Local segment descriptor not found")


class Screen:
    """On a terminal what is waited for is shown in one line that changes; elsewhere each change is a line."""

    def __init__(self, model: str, *, asks_for_a_key: bool = False) -> None:
        self._model = model
        self._asks_for_a_key = asks_for_a_key
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._missing = "its processes"
        self._loaded: dict[str, tuple[int, int]] = {}  # by rank: tensors, and of how many
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
        self._missing = missing
        if self._status is None:
            self._say(f"tandem: waiting for {missing}")
        else:
            self._update(self._status)

    def loaded(self, name: str, done: int, total: int) -> None:
        """A rank has so many of its tensors: for a terminal only."""
        self._loaded[name] = done, total
        if self._status is not None:
            self._update(self._status)

    def _update(self, status: Status) -> None:
        """What is missing, and a bar over all ranks while weights are being loaded."""
        done, total = (sum(counts) for counts in zip(*self._loaded.values(), strict=True)) if self._loaded else (0, 0)
        waits = f"waiting for {self._missing}"
        status.update(f"weights {bar(done, total)}  {waits}" if done < total else waits)

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
            f"Try:   {' '.join(self._curl(url))} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
            f"Look:  {facts['admin_url']}/dashboard",
            "Stop:  Ctrl-C",
            ready_line(facts),
        )

    def _curl(self, url: str) -> list[str]:
        """With what this cluster asks of its clients. A certificate may be nobody's that curl knows."""
        key = ['-H "Authorization: Bearer $TANDEM_API_KEY"'] if self._asks_for_a_key else []
        return ["curl", *(["--insecure"] if url.startswith("https:") else []), url, *key]

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


def bar(done: int, total: int) -> str:
    """How far something has come."""
    filled = done * BAR // total
    return f"{'━' * filled}{'─' * (BAR - filled)} {100 * done // total}%"


def ready_line(facts: Mapping[str, Any]) -> str:
    """What programs wait for."""
    return f"READY {json.dumps(facts)}"
