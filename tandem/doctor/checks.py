"""Judges the facts of one host. Pure: every text can be had by giving other facts."""

from collections.abc import Sequence

from tandem.doctor.facts import LIBRARIES, Devices, Facts
from tandem.doctor.report import Finding, fail, ok, warn

PYTHON = (3, 11)
MOONCAKE = "0.3.13.post1"
"""The version that the transport's requirements were measured on."""
MIN_FILES = 4096
"""A router answers 1,024 requests at once, each on a socket of its own, and keeps links to every group."""
MIN_SHM = 512 << 20
"""Eight payloads of 1,024 tokens of 16,384 floats, the most that hidden states of one link can take."""
MIN_MEMORY = 2 << 30
MIN_CPUS = 2


def check_host(facts: Facts, protocol: str, device: str) -> list[Finding]:
    """All that can be said without trying anything."""
    return [
        check_python(facts),
        check_packages(facts),
        check_mooncake(facts),
        check_libraries(facts),
        check_rdma(facts.devices, protocol, device),
        check_locked_memory(facts, protocol),
        check_open_files(facts),
        check_shared_memory(facts),
        check_memory(facts),
        check_cpus(facts),
    ]


def check_python(facts: Facts) -> Finding:
    """Its version."""
    version = ".".join(str(part) for part in facts.python)
    if facts.python < PYTHON:
        return fail("python", f"{version}: install {PYTHON[0]}.{PYTHON[1]} or newer")
    return ok("python", version)


def check_packages(facts: Facts) -> Finding:
    """Those that every role imports."""
    missing = [name for name, version in facts.packages.items() if not version]
    if missing:
        return fail("packages", f"{listed(missing)} not installed: pip install {' '.join(missing)}")
    return ok("packages", listed([f"{name} {version}" for name, version in facts.packages.items()]))


def check_mooncake(facts: Facts) -> Finding:
    """One wheel of it, and the one that is known."""
    wheels = [f"{name} {version}" for name, version in facts.mooncake.items()]
    if not wheels:
        return fail(
            "mooncake",
            "not installed: pip install mooncake-transfer-engine-non-cuda, or mooncake-transfer-engine on a CUDA host",
        )
    if len(wheels) > 1:
        return fail("mooncake", f"{listed(wheels)} overwrite each other: uninstall all, then install the one you need")
    if MOONCAKE not in facts.mooncake.values():
        return warn("mooncake", f"{wheels[0]}: Tandem was tried with {MOONCAKE}; install that if transfers fail")
    return ok("mooncake", wheels[0])


def check_libraries(facts: Facts) -> Finding:
    """What Mooncake links to."""
    missing = {name: error for name, error in facts.libraries.items() if error}
    if missing:
        packages = " ".join(LIBRARIES[name] for name in missing)
        return fail("libraries", f"{'; '.join(missing.values())}: apt install {packages}")
    return ok("libraries", listed(list(facts.libraries)))


def check_rdma(devices: Devices, protocol: str, device: str) -> Finding:
    """Devices, and whether those demanded can be used."""
    found = listed([f"{each.name} {each.state} {each.rate}".rstrip() for each in devices.found])
    if protocol != "rdma":
        return ok("rdma", f"{found or 'no device'}; --transport-protocol is {protocol}, which needs none")
    wanted = [name for name in device.split(",") if name] or [each.name for each in devices.found]
    absent = [name for name in wanted if name not in [each.name for each in devices.found]]
    active = [each.name for each in devices.found if each.name in wanted and each.state == "ACTIVE"]
    if not devices.driver:
        return fail(
            "rdma",
            "demanded, but the kernel has no RDMA driver loaded (no /sys/class/infiniband): load it, give the "
            "container the host's devices, or use --transport-protocol tcp",
        )
    if not devices.found:
        return fail("rdma", "demanded, but /sys/class/infiniband is empty: look for the card with lspci, or use tcp")
    if absent:
        return fail("rdma", f"--transport-device names {listed(absent)}, but there is {found}: name one of these")
    if not active:
        return fail("rdma", f"demanded, but no port is active: {found}; look at the cable, the switch and ibv_devinfo")
    if not devices.verbs:
        return fail("rdma", "demanded, but no /dev/infiniband/uverbs* may be opened: give the container these devices")
    return ok("rdma", found)


def check_locked_memory(facts: Facts, protocol: str) -> Finding:
    """RDMA locks the whole page pool."""
    limit = "unlimited" if facts.lock_bytes is None else size(facts.lock_bytes)
    if protocol != "rdma":
        return ok("locked-memory", f"ulimit -l is {limit}; {protocol} needs none")
    if facts.lock_bytes is not None and not facts.may_lock:
        return fail(
            "locked-memory",
            f"ulimit -l is {limit}: RDMA locks the whole page pool; set it to unlimited, or give CAP_IPC_LOCK",
        )
    return ok("locked-memory", f"{limit}, with CAP_IPC_LOCK" if facts.may_lock else limit)


def check_open_files(facts: Facts) -> Finding:
    """Sockets, mostly."""
    if facts.open_files is not None and facts.open_files < MIN_FILES:
        return warn("open-files", f"ulimit -n is {facts.open_files}: a busy router needs {MIN_FILES}; ulimit -n 65536")
    return ok("open-files", "unlimited" if facts.open_files is None else f"{facts.open_files}")


def check_shared_memory(facts: Facts) -> Finding:
    """Hidden states between ranks of one host go through it."""
    free = f"{size(facts.shm_bytes)} free in /dev/shm"
    if facts.shm_bytes < MIN_SHM:
        return warn(
            "shared-memory",
            f"{free}: hidden states of a large model take up to {size(MIN_SHM)} per link; mount a larger one "
            "(containers have 64 MiB by default)",
        )
    return ok("shared-memory", free)


def check_memory(facts: Facts) -> Finding:
    """For weights and page pool."""
    if facts.memory_bytes < MIN_MEMORY:
        return warn(
            "memory", f"{size(facts.memory_bytes)} available: weights and page pool must fit; lower --num-pages"
        )
    return ok("memory", f"{size(facts.memory_bytes)} available")


def check_cpus(facts: Facts) -> Finding:
    """A rank computes and transfers at the same time."""
    if facts.cpus < MIN_CPUS:
        return warn("cpus", f"{facts.cpus:g}: transfers and computing of a rank wait for each other; give it two")
    return ok("cpus", f"{facts.cpus:g}")


def listed(words: Sequence[str]) -> str:
    """In one sentence."""
    return ", ".join(words)


def size(length: int) -> str:
    """Bytes in the largest binary unit of which there is at least one."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if length >= 1 << shift:
            return f"{length / (1 << shift):.3g} {unit}"
    return f"{length} bytes"
