"""What this host is like, read but not judged: `checks` does that."""

import ctypes
import importlib.metadata
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

PACKAGES = ("tandem", "torch", "pyzmq", "msgspec", "numpy", "redis")
MOONCAKE = re.compile(r"mooncake[-_]transfer[-_]engine.*")
"""Every one of its wheels installs the same package."""
LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""What Mooncake's wheel links to, and the Debian package it is in."""
IPC_LOCK = 14
"""The bit of CAP_IPC_LOCK: who has it may lock more memory than `ulimit -l` says."""
SHARED_MEMORY = "/dev/shm"

CGROUP = Path("/sys/fs/cgroup")
INFINIBAND = Path("/sys/class/infiniband")
VERBS = Path("/dev/infiniband")
PROC = Path("/proc")


class Device(msgspec.Struct, frozen=True):
    """One RDMA device and the best state of its ports, such as `ACTIVE`."""

    name: str
    state: str
    rate: str = ""


class Devices(msgspec.Struct, frozen=True):
    """The RDMA devices of this host. `verbs` says whether a process may open them."""

    driver: bool  # the kernel has one loaded
    found: tuple[Device, ...] = ()
    verbs: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One host. Bytes are what is available; None is no limit."""

    python: tuple[int, int, int]
    packages: dict[str, str]  # versions; empty: not installed
    mooncake: dict[str, str]  # version of each of its wheels that is installed
    libraries: dict[str, str]  # why it cannot be loaded; empty: it can
    devices: Devices
    lock_bytes: int | None
    may_lock: bool  # whatever lock_bytes says
    open_files: int | None
    shm_bytes: int
    memory_bytes: int
    cpus: float
    ports: tuple[int, int]  # from which the system picks


def read_facts() -> Facts:
    """Those of this host and process."""
    return Facts(
        python=sys.version_info[:3],
        packages={name: version_of(name) for name in PACKAGES},
        mooncake=mooncake_wheels(),
        libraries={name: load_error(name, ctypes.CDLL) for name in LIBRARIES},
        devices=read_devices(INFINIBAND, VERBS),
        lock_bytes=soft_limit(resource.RLIMIT_MEMLOCK),
        may_lock=has_capability(IPC_LOCK, PROC),
        open_files=soft_limit(resource.RLIMIT_NOFILE),
        shm_bytes=free_bytes(SHARED_MEMORY),
        memory_bytes=read_memory(PROC, CGROUP),
        cpus=read_cpus(CGROUP),
        ports=read_ports(PROC),
    )


def version_of(package: str) -> str:
    """Its version, or nothing. It is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def mooncake_wheels() -> dict[str, str]:
    """Which of Mooncake's wheels are installed, in which version."""
    every = ((found.metadata["Name"] or "", found.version) for found in importlib.metadata.distributions())
    return {name: version for name, version in sorted(every) if MOONCAKE.fullmatch(name)}


def load_error(library: str, load: Callable[[str], object]) -> str:
    """Why the library cannot be loaded, or nothing."""
    try:
        load(library)
    except OSError as error:
        return str(error)
    return ""


def read_devices(infiniband: Path, verbs: Path) -> Devices:
    """From the kernel's lists of devices and of their character files."""
    if not infiniband.is_dir():
        return Devices(driver=False)
    found = tuple(read_device(place) for place in sorted(infiniband.iterdir()))
    return Devices(True, found, any(os.access(file, os.R_OK | os.W_OK) for file in verbs.glob("uverbs*")))


def read_device(place: Path) -> Device:
    """An active port is said first; the state's text is like `4: ACTIVE`."""
    ports = sorted((word(port / "state").rpartition(": ")[2], word(port / "rate")) for port in place.glob("ports/*"))
    return Device(place.name, *(ports[0] if ports else ("without a port",)))


def soft_limit(kind: int) -> int | None:
    """What this process may use at most."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def has_capability(bit: int, proc: Path) -> bool:
    """Whether this process has it now."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", (proc / "self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> bit & 1)


def free_bytes(directory: str) -> int:
    """Of its file system; 0 where there is none."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def read_memory(proc: Path, cgroup: Path) -> int:
    """Bytes that can still be had: from the machine, and within this container."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    free = int(found[1]) << 10 if found else 0
    limit, used = word(cgroup / "memory.max"), word(cgroup / "memory.current")
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() and used.isdigit() else free


def read_cpus(cgroup: Path) -> float:
    """Those that this process may run on, or the share of them that its container has."""
    cpus = float(len(os.sched_getaffinity(0)))
    quota, _, period = word(cgroup / "cpu.max").partition(" ")
    return min(cpus, int(quota) / int(period)) if quota.isdigit() and period.isdigit() else cpus


def read_ports(proc: Path) -> tuple[int, int]:
    """First and last of the ports that the system picks from when asked for any."""
    first, last = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(first), int(last)


def word(file: Path) -> str:
    """What a file of the kernel says; nothing where it is not."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
