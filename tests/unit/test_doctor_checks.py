"""Every check of a host, by the facts that make it complain, and where those facts are read."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tandem.doctor.checks import check_host, size
from tandem.doctor.facts import (
    IPC_LOCK,
    LIBRARIES,
    PACKAGES,
    Device,
    Devices,
    Facts,
    free_bytes,
    has_capability,
    load_error,
    mooncake_wheels,
    read_cpus,
    read_devices,
    read_facts,
    read_memory,
    version_of,
)
from tandem.doctor.report import Finding, Level

CARD = Devices(True, (Device("mlx5_0", "ACTIVE", "400 Gb/sec (4X NDR)"), Device("mlx5_1", "DOWN")), verbs=True)
GOOD = Facts(
    python=(3, 11, 7),
    packages=dict.fromkeys(PACKAGES, "1.0"),
    mooncake={"mooncake-transfer-engine-non-cuda": "0.3.13.post1"},
    libraries=dict.fromkeys(LIBRARIES, ""),
    devices=CARD,
    lock_bytes=None,
    may_lock=False,
    open_files=65536,
    shm_bytes=8 << 30,
    memory_bytes=64 << 30,
    cpus=8.0,
    ports=(32768, 60999),
)


def found(name: str, protocol: str = "tcp", device: str = "", **facts: Any) -> Finding:
    """One check of a host that is good but for some facts."""
    every = check_host(msgspec.structs.replace(GOOD, **facts), protocol, device)
    return next(finding for finding in every if finding.name == name)


@pytest.mark.parametrize("protocol", ["tcp", "rdma"])
def test_nothing_is_wrong_with_a_good_host(protocol: str):
    every = check_host(GOOD, protocol, "mlx5_0" if protocol == "rdma" else "")
    assert [finding for finding in every if finding.level is not Level.OK] == []
    assert len({finding.name for finding in every}) == len(every) == 10


OLD = {**dict.fromkeys(PACKAGES, "1.0"), "torch": "", "pyzmq": ""}
TWO = {"mooncake-transfer-engine": "0.3.13.post1", "mooncake-transfer-engine-non-cuda": "0.3.13.post1"}
UNLOADED = {**dict.fromkeys(LIBRARIES, ""), "libnuma.so.1": "libnuma.so.1: cannot open shared object file"}
COMPLAINTS: list[tuple[str, Level, dict[str, Any], list[str]]] = [
    ("python", Level.FAIL, {"python": (3, 10, 12)}, ["3.10.12", "install 3.11"]),
    ("packages", Level.FAIL, {"packages": OLD}, ["torch, pyzmq not installed", "pip install torch pyzmq"]),
    ("mooncake", Level.FAIL, {"mooncake": {}}, ["pip install mooncake-transfer-engine-non-cuda"]),
    ("mooncake", Level.FAIL, {"mooncake": TWO}, ["overwrite each other", "uninstall all"]),
    ("mooncake", Level.WARN, {"mooncake": {"mooncake-transfer-engine": "0.4"}}, ["0.4", "0.3.13.post1"]),
    ("libraries", Level.FAIL, {"libraries": UNLOADED}, ["libnuma.so.1", "apt install libnuma1"]),
    ("open-files", Level.WARN, {"open_files": 1024}, ["ulimit -n is 1024", "ulimit -n 65536"]),
    ("shared-memory", Level.WARN, {"shm_bytes": 64 << 20}, ["64 MiB free in /dev/shm", "512 MiB"]),
    ("memory", Level.WARN, {"memory_bytes": 1 << 30}, ["1 GiB available", "--num-pages"]),
    ("cpus", Level.WARN, {"cpus": 1.5}, ["1.5", "give it two"]),
]


@pytest.mark.parametrize(
    ("name", "level", "facts", "words"), COMPLAINTS, ids=[f"{each[0]} {each[1].value}" for each in COMPLAINTS]
)
def test_a_complaint_says_what_was_found_and_what_to_do(
    name: str, level: Level, facts: dict[str, Any], words: list[str]
):
    finding = found(name, **facts)
    assert finding.level is level
    assert [word for word in words if word not in finding.text] == [], finding.text


DOWN = Devices(True, (Device("mlx5_0", "DOWN", "10 Gb/sec"),), verbs=True)
DEMANDED: list[tuple[str, Devices, str, list[str]]] = [
    ("no driver", Devices(False), "", ["no RDMA driver", "/sys/class/infiniband", "--transport-protocol tcp"]),
    ("no card", Devices(True), "", ["/sys/class/infiniband is empty", "lspci"]),
    ("another name", CARD, "mlx5_0,mlx5_9", ["names mlx5_9", "mlx5_1 DOWN"]),
    ("all down", DOWN, "", ["no port is active", "mlx5_0 DOWN 10 Gb/sec", "ibv_devinfo"]),
    ("the one named is down", CARD, "mlx5_1", ["no port is active"]),
    ("not to be opened", msgspec.structs.replace(CARD, verbs=False), "", ["/dev/infiniband/uverbs*", "container"]),
]


@pytest.mark.parametrize(("devices", "device", "words"), [each[1:] for each in DEMANDED], ids=[d[0] for d in DEMANDED])
def test_rdma_that_is_demanded_but_absent_fails_and_says_why(devices: Devices, device: str, words: list[str]):
    finding = found("rdma", "rdma", device, devices=devices)
    assert finding.level is Level.FAIL
    assert [word for word in words if word not in finding.text] == [], finding.text
    assert found("rdma", "tcp", devices=devices).level is Level.OK


def test_rdma_needs_to_lock_memory_and_tcp_does_not():
    assert found("locked-memory", "rdma", lock_bytes=8 << 20).level is Level.FAIL
    assert "ulimit -l is 8 MiB" in found("locked-memory", "rdma", lock_bytes=8 << 20).text
    assert found("locked-memory", "rdma", lock_bytes=8 << 20, may_lock=True).level is Level.OK
    assert found("locked-memory", "tcp", lock_bytes=8 << 20).level is Level.OK


@pytest.mark.parametrize(
    ("length", "text"), [(0, "0 bytes"), (1536, "1.5 KiB"), (8 << 20, "8 MiB"), (3 << 30, "3 GiB")]
)
def test_sizes_are_told_in_the_largest_unit(length: int, text: str):
    assert size(length) == text


# where the facts come from


def test_this_host_has_what_the_tests_need():
    facts = read_facts()
    assert facts.python >= (3, 11, 0)
    assert "" not in facts.packages.values()
    assert facts.libraries == dict.fromkeys(LIBRARIES, "")
    assert list(facts.mooncake.values()) == [version_of(next(iter(facts.mooncake)))]
    assert facts.cpus > 0 < facts.memory_bytes
    assert 0 < facts.ports[0] < facts.ports[1] < 1 << 16


def test_a_package_that_is_not_there_has_no_version():
    assert version_of("no-such-package") == ""
    assert len(mooncake_wheels()) == 1


def test_a_library_that_cannot_be_loaded_says_why():
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    assert load_error("libx.so.1", refuse) == "libx.so.1: cannot open shared object file"
    assert load_error("libx.so.1", lambda name: None) == ""


def write(files: dict[str, str], root: Path) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_devices_are_read_from_the_kernels_lists(tmp_path: Path):
    files = {
        "class/mlx5_0/ports/1/state": "1: DOWN\n",
        "class/mlx5_0/ports/2/state": "4: ACTIVE\n",
        "class/mlx5_0/ports/2/rate": "400 Gb/sec (4X NDR)\n",
        "class/mlx5_1/ports/1/state": "1: DOWN\n",
        "class/mlx5_2/node_type": "1: CA\n",
        "dev/uverbs0": "",
    }
    write(files, tmp_path)
    expected = (
        Device("mlx5_0", "ACTIVE", "400 Gb/sec (4X NDR)"),
        Device("mlx5_1", "DOWN"),
        Device("mlx5_2", "without a port"),
    )
    assert read_devices(tmp_path / "class", tmp_path / "dev") == Devices(True, expected, verbs=True)
    assert not read_devices(tmp_path / "class", tmp_path / "none").verbs
    assert read_devices(tmp_path / "none", tmp_path / "dev") == Devices(driver=False)


def test_memory_is_that_of_the_machine_or_of_its_container(tmp_path: Path):
    write({"meminfo": "MemTotal: 9 kB\nMemAvailable:    4096 kB\n", "memory.current": "1048576\n"}, tmp_path)
    assert read_memory(tmp_path, tmp_path) == 4 << 20
    write({"memory.max": "max\n"}, tmp_path)
    assert read_memory(tmp_path, tmp_path) == 4 << 20
    write({"memory.max": "3145728\n"}, tmp_path)
    assert read_memory(tmp_path, tmp_path) == 2 << 20


def test_cpus_are_those_of_the_process_or_of_its_container(tmp_path: Path):
    whole = read_cpus(tmp_path)
    assert whole >= 1
    write({"cpu.max": "max 100000\n"}, tmp_path)
    assert read_cpus(tmp_path) == whole
    write({"cpu.max": "50000 100000\n"}, tmp_path)
    assert read_cpus(tmp_path) == 0.5


def test_the_capability_to_lock_memory_is_a_bit_of_the_status(tmp_path: Path):
    for bits, has in ((1 << IPC_LOCK, True), (1 << (IPC_LOCK + 1), False)):
        write({"self/status": f"Name:\tx\nCapEff:\t{bits:016x}\n"}, tmp_path)
        assert has_capability(IPC_LOCK, tmp_path) is has


def test_a_file_system_that_is_not_there_has_no_room():
    assert free_bytes("/no/such/place") == 0 < free_bytes("/")
