"""`tandem doctor` as processes, with real Mooncake: one host, two ends of it, and two network namespaces."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from needs import missing
from ports import free_ports

from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.doctor.report import Level, ok
from tandem.doctor.trials import try_registry
from tandem.runtime.embedded import EmbeddedRegistry
from tandem.runtime.registry import Registry

DEADLINE_S = 120
SECRET = b"a cluster secret"
MEMBER = Member(Group(RoleName.PREFILL, "p0", (8,)), RankId(0), 1, 0, "h", "f", "m", "", "", "h:1", Limits())
HERE, THERE = "10.77.0.1", "10.77.0.2"
PORT = 7000

HOST = [
    *("python", "packages", "mooncake", "libraries", "rdma", "locked-memory", "open-files"),
    *("shared-memory", "memory", "cpus", "compiler", "engine"),
]
OWN = ["own-port", "transport"]
PAIR = ["peer", "versions", "clock", "latency"]
WAY = ["port", "known-answer", "bandwidth"]


class Doctor:
    """One running `tandem doctor --json`."""

    def __init__(self, *arguments: str, inside: Sequence[str] = ()) -> None:
        command = [*inside, sys.executable, "-m", "tandem.cli", "doctor", "--json", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def result(self) -> tuple[int, list[dict[str, Any]]]:
        """Exit status and findings."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert out, err
        told = json.loads(out)
        assert told["ok"] is (self.process.returncode == 0)
        return self.process.returncode, told["findings"]

    def wait_until_it_listens(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "tandem doctor: waits" in line:
                return
        raise AssertionError("it ended before it listened")


@pytest.fixture
def doctor() -> Iterator[Callable[..., Doctor]]:
    """Starts doctors; none outlives its test."""
    started: list[Doctor] = []

    def start(*arguments: str, inside: Sequence[str] = ()) -> Doctor:
        started.append(Doctor(*arguments, inside=inside))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return write_secret(tmp_path / "secret")


def write_secret(path: Path) -> str:
    path.write_bytes(secrets.token_bytes(32))
    path.chmod(0o600)
    return f"--cluster-secret-file={path}"


def free_place() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def names(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["name"] for finding in findings]


def failures(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {finding["name"]: finding["text"] for finding in findings if finding["level"] == "fail"}


def pair_of(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["name"] in (*PAIR, *WAY)]


def test_one_host_is_looked_at_and_transfers_to_itself(doctor):
    status, findings = doctor().result()
    assert (status, failures(findings)) == (0, {})
    assert names(findings) == [*HOST, *OWN, *PAIR, *WAY]


def test_two_ends_tell_the_same_of_each_other(doctor, secret):
    place = free_place()
    listening = doctor("--listen", place, secret)
    status, findings = doctor("--connect", place, secret).result()
    assert (status, failures(findings)) == (0, {})
    assert names(findings) == [*HOST, *OWN, *PAIR, *WAY]
    status, heard = listening.result()
    assert status == 0
    assert pair_of(heard) == pair_of(findings)


def test_rdma_that_is_not_there_fails_and_the_rest_is_still_looked_at(doctor):
    if Path("/sys/class/infiniband").is_dir():
        pytest.skip("this host has RDMA")
    status, findings = doctor("--transport-protocol", "rdma").result()
    failed = failures(findings)
    assert status == 1
    assert "no /sys/class/infiniband" in failed["rdma"]
    assert "rdma" in failed["transport"]
    assert "has no transport" in failed["known-answer"]
    assert names(findings) == [*HOST, *OWN, *PAIR, *WAY]


def test_another_secret_is_one_sentence(doctor, secret, tmp_path):
    place = free_place()
    doctor("--listen", place, secret).wait_until_it_listens()
    status, findings = doctor("--connect", place, write_secret(tmp_path / "other")).result()
    assert status == 1
    assert list(failures(findings)) == ["peer"]
    assert "the same --cluster-secret-file" in failures(findings)["peer"]


def test_a_missing_peer_is_one_sentence(doctor, secret):
    place = free_place()
    status, findings = doctor("--connect", place, secret, "--wait", "1").result()
    assert status == 1
    assert list(failures(findings)) == ["peer"]
    assert f"start `tandem doctor --listen {place}` there" in failures(findings)["peer"]


ENDLESS = """
from tandem.doctor import pair
pair.ROUNDS = 1 << 40
from tandem.cli import main
main()
"""


@contextlib.contextmanager
def in_conversation(place: str, secret: str) -> Iterator["subprocess.Popen[str]"]:
    """A caller that has met the listener and now compares clocks, for as long as it is let."""
    command = [sys.executable, "-c", ENDLESS, "doctor", "--connect", place, secret]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    how["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background ignore it
    with subprocess.Popen(command, **how) as calling:
        assert calling.stdout is not None
        assert next(line for line in calling.stdout if line.startswith("ok   peer"))
        yield calling


def test_a_caller_that_is_interrupted_tells_the_listener(doctor, secret):
    place = free_place()
    listening = doctor("--listen", place, secret)
    listening.wait_until_it_listens()
    with in_conversation(place, secret) as calling:
        calling.send_signal(signal.SIGINT)
        calling.communicate(timeout=DEADLINE_S)
    assert calling.returncode != 0
    status, findings = listening.result()
    assert (status, failures(findings)) == (1, {"peer": "the caller left: it was interrupted"})


def test_a_listener_that_dies_is_noticed(doctor, secret):
    place = free_place()
    listening = doctor("--listen", place, secret)
    listening.wait_until_it_listens()
    with in_conversation(place, secret) as calling:
        listening.process.kill()
        lines, _ = calling.communicate(timeout=DEADLINE_S)
    assert calling.returncode == 1
    assert f"fail peer: {place} went away at " in lines


def test_a_registry_is_read_or_named(tmp_path):
    server = EmbeddedRegistry(tmp_path / "registry")
    try:
        with contextlib.closing(Registry(server.url, "c", SECRET)) as registry:
            registry.publish(MEMBER)
        assert try_registry(server.url, "c", SECRET) == ok(
            "registry", f"{server.url} answers; ranks of cluster c there: 1"
        )
        stranger = try_registry(server.url, "c", b"another secret, too")
        assert stranger.level is Level.WARN
        assert "entries not signed with this --cluster-secret-file: 1" in stranger.text
        assert "give --cluster-secret-file" in try_registry(server.url, "c", b"").text
    finally:
        server.stop()
    gone = try_registry(server.url, "c", SECRET)
    assert gone.level is Level.FAIL
    assert "correct --registry-url" in gone.text


# two network namespaces


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=DEADLINE_S)


@pytest.fixture
def hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Two hosts with a wire between them: the commands that run something on one and on the other."""
    one, two = (f"tandem-{os.getpid()}-{end}" for end in "ab")
    made: list[str] = []
    try:
        for name in (one, two):
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "veth", "netns", one, "type", "veth", "peer", "name", "veth", "netns", two)
        for name, address in ((one, HERE), (two, THERE)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "veth")
            ip("-n", name, "link", "set", "veth", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        delete(made)
        missing(f"no network namespaces here, they need root and `ip`: {error}")
    yield ["ip", "netns", "exec", one], ["ip", "netns", "exec", two]
    delete(made)


def delete(namespaces: Sequence[str]) -> None:
    for name in namespaces:
        ip("netns", "delete", name)


def between(doctor: Any, hosts: tuple[list[str], list[str]], secret: str) -> tuple[int, list[dict[str, Any]]]:
    """What both ends say; they say the same of each other."""
    listening = doctor("--listen", f"{HERE}:{PORT}", secret, inside=hosts[0])
    status, findings = doctor("--connect", f"{HERE}:{PORT}", secret, inside=hosts[1]).result()
    heard_status, heard = listening.result()
    assert heard_status == status
    assert pair_of(heard) == pair_of(findings)
    return status, findings


def test_two_hosts_write_a_known_answer_both_ways(doctor, hosts, secret):
    status, findings = between(doctor, hosts, secret)
    assert (status, failures(findings)) == (0, {})
    assert names(findings) == [*HOST, *OWN, *PAIR, *WAY, *WAY]
    known = [finding["text"] for finding in findings if finding["name"] == "known-answer"]
    right = "1024 scattered blocks of 4096 bytes were written and are right, byte for byte"
    assert known == [f"{THERE} to {HERE}: {right}", f"{HERE} to {THERE}: {right}"]


def test_a_port_that_a_firewall_closes_is_named(doctor, hosts, secret):
    """Mooncake's ports of the listening host cannot be reached; all others can."""
    ip("-n", hosts[1][-1], "rule", "add", "ipproto", "tcp", "dport", "15000-17000", "unreachable", "pref", "100")
    status, findings = between(doctor, hosts, secret)
    assert status == 1
    failed = failures(findings)
    assert list(failed) == ["known-answer"]
    assert failed["known-answer"].startswith(f"{THERE} to {HERE}: {HERE}:")
    assert "cannot be reached" in failed["known-answer"]
    assert "open the ports 15000 to 17000" in failed["known-answer"]
    assert [finding["level"] for finding in findings if finding["name"] == "known-answer"] == ["fail", "ok"]
