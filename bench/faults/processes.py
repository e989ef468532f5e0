"""The processes of a running cluster as the kernel knows them: who is who, and what each holds."""

import contextlib
import os
import re
from pathlib import Path

import msgspec

RANK = re.compile(rb"--group=([^\0]+)\0(?:.*\0)?--rank=(\d+)\0", re.DOTALL)
ROUTER, REGISTRY, SUPERVISOR = "router", "registry", "supervisor"
SERVERS = (b"valkey-server", b"redis-server")


class Held(msgspec.Struct, frozen=True):
    """What a process holds."""

    mib: float  # resident memory
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.mib:.0f} MiB, {self.files} files, {self.threads} threads"


def processes(supervisor: int) -> dict[str, int]:
    """The supervisor's pid and those of what it has started, by name such as p0.1."""
    found = {SUPERVISOR: supervisor}
    for pid in map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()):
        with contextlib.suppress(OSError):
            name = name_of(Path(f"/proc/{pid}/cmdline").read_bytes())
            if name:
                found[name] = pid
    return found


def name_of(command: bytes) -> str:
    """By the words of a command line, each with a zero behind it; empty for others."""
    words = command.split(b"\0")
    if rank := RANK.search(command):
        return f"{rank[1].decode()}.{rank[2].decode()}"
    if b"router" in words:
        return ROUTER
    return REGISTRY if any(server in words[0] for server in SERVERS) else ""


def held(pid: int) -> Held:
    """Raises OSError when it has gone."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    mib = pages * os.sysconf("SC_PAGESIZE") / 2**20
    return Held(mib, len(os.listdir(folder / "fd")), len(os.listdir(folder / "task")))


def born(pid: int) -> str:
    """When a process began: with its pid, who it is. Raises OSError when it has gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
