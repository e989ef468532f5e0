"""The private directory of one local cluster: unix sockets, shared memory, the secret. A janitor removes it."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from tandem.local import janitor

SHARED_MEMORY = "/dev/shm"
PREFIX = "tandem-"
SECRET_BYTES = 32
TIDY_S = janitor.GRACE_S + janitor.KILLED_S + 1.0


class RunDirectory:
    """A context: `path` exists within it, and is gone after it, even when this process is killed.

    Its path is short, because those of unix sockets must be.
    """

    def __init__(self) -> None:
        base = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # mode 0700
        self._line, theirs = socket.socketpair()
        with theirs:
            self._janitor = subprocess.Popen(
                [sys.executable, "-I", "-S", janitor.__file__, str(self.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def write_secret(self) -> Path:
        """A new cluster secret in a file that only we can read."""
        path = self.path / "secret"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        return path

    def end_with_us(self, pidfd: int) -> None:
        """This process is part of the cluster: the janitor kills it, should it outlive us for long."""
        with contextlib.suppress(BrokenPipeError):  # the janitor itself was killed: the leashes still hold
            socket.send_fds(self._line, [b"."], [pidfd])

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._line.close()
        self._janitor.wait(TIDY_S)
        shutil.rmtree(self.path, ignore_errors=True)  # unless the janitor was killed, it is gone
