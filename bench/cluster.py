"""A `tandem up` of one's own, for benchmarks and tests: started, awaited, stopped, and gone whatever happens."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

READY = b"READY "
END_S = 60.0
"""`tandem up` ends within 5 s of a signal, where nobody else wants the machine."""


LEASH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run in between: a cluster whose test or benchmark was killed gets a SIGTERM from the kernel."""


class ClusterFailed(Exception):
    """It did not start, or not end, as it should; the text has what it wrote to standard error."""


class Cluster:
    """A context: `tandem up ARGUMENTS` in a session of its own, on any free port. Within it, the cluster serves.

    `url`, `admin_url`, `pids` and `http` are those of the READY line. `process` is the supervisor.
    """

    def __init__(
        self, *arguments: str, ready_s: float = 120.0, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._arguments: Sequence[str] = arguments
        self._environment = environment
        self._ready_s = ready_s
        self.url = ""
        self.admin_url = ""
        self.pids: dict[str, int] = {}
        self.http: dict[str, str] = {}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "-P", "-m", "tandem.cli", "up", "--port=0", *self._arguments]
        command = [sys.executable, "-I", "-S", "-c", LEASH, str(os.getpid()), *command]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, **self._environment},
        )
        try:
            self._read_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            if kind is not None:
                print(self.stderr(), file=sys.stderr)
            self.kill()

    def serves_again(self) -> None:
        """Once a process of it has ended: wait until it serves again, and take over what its new READY line says.

        Raises ClusterFailed when it does not.
        """
        self._read_ready()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit status. Raises ClusterFailed when it does not end in time."""
        self.process.send_signal(number)
        return self.wait(END_S)

    def wait(self, timeout_s: float) -> int:
        """Its exit status, once it has ended by itself. Raises ClusterFailed."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterFailed(f"tandem up did not end within {timeout_s:.0f} s:\n{self.stderr()}") from None

    def kill(self) -> None:
        """End everything at once: the supervisor, and so, by their leashes, its processes; then close."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def stderr(self) -> str:
        """What it has written to standard error."""
        if self._log.closed:
            return ""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def _read_ready(self) -> None:
        assert self.process.stdout is not None
        out, text = self.process.stdout.fileno(), b""
        deadline_s = time.monotonic() + self._ready_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while READY not in text or not text.endswith(b"\n"):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    raise ClusterFailed(f"tandem up was not ready after {self._ready_s:.0f} s:\n{self.stderr()}")
                if not (data := os.read(out, 1 << 16)):
                    raise ClusterFailed(f"tandem up exited with status {self.process.wait()}:\n{self.stderr()}")
                text += data
        self._take(text)

    def _take(self, text: bytes) -> None:
        facts: dict[str, Any] = json.loads(text.rpartition(READY)[2])
        self.url, self.admin_url = facts["url"], facts["admin_url"]
        self.pids, self.http = facts["pids"], facts["http"]
