"""One process of a local cluster, tied to us by its standard input: it ends when we do."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

READ_BYTES = 1 << 16
READS = 8
"""At most so many at a time: one process that writes without end must not keep us from the others."""
LINE_BYTES = 1 << 14
"""A longer line is cut into pieces."""

LOGGED = re.compile(r"^[\d:.]+ [A-Z]+ +\S+ ")
"""Time, level and name, before what is said in a line of our logs."""


@dataclass(frozen=True)
class Command:
    """What to start. The router has no `group` and `member`."""

    name: str  # p0.1
    title: str  # prefill p0 rank 1
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    group: str = ""  # p0
    member: str = ""  # rank 1


class Child:
    """Started at once. `pidfd` becomes readable at its end, `output` when it has written something."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.last_line = ""
        self._process = subprocess.Popen(
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.environment},
            process_group=0,  # Ctrl-C is for the supervisor alone
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self.output = self._output.fileno()
        os.set_blocking(self.output, False)
        os.set_blocking(self._input.fileno(), False)  # whoever does not read must not keep us from the others
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self._rest = b""
        self.silent = False
        """It has closed its output."""

    def read(self) -> list[bytes]:
        """The lines that it has written since, without waiting."""
        lines: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS):
                data = os.read(self.output, READ_BYTES)
                if not data:
                    self.silent = True
                    lines += [self._rest] if self._rest else []
                    break
                *whole, self._rest = (self._rest + data).split(b"\n")
                lines += whole
                if len(self._rest) > LINE_BYTES:
                    lines.append(self._rest)
                    self._rest = b""
        for line in lines:
            self.last_line = LOGGED.sub("", line.decode(errors="replace")).strip() or self.last_line
        return lines

    def tell(self, line: str) -> None:
        """Write a line to its standard input, if it still listens."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._input.fileno(), f"{line}\n".encode())

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        self._process.send_signal(number)

    def reap(self) -> int:
        """Its exit status, once `pidfd` is readable; negative: the signal that ended it."""
        return self._process.wait()

    def close(self) -> None:
        """Give back its files."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        os.close(self.pidfd)


def describe_end(status: int) -> str:
    """`was killed by SIGKILL`, or `exited with status 3`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"
