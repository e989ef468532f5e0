"""Fences, restarts and silent peers with real Mooncake: nothing lands where it must not, and nobody else waits."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hands import Rank, Start, hand_over, writes
from needs import missing
from waiting import eventually

from tandem.core.config import RoleName

PORT = 16201
ATTEMPTS = 2
"""A zombie is watched for so many more writes."""


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    """Where a zombie counts."""
    return tmp_path / "writes"


def pair(start: Start, **how: object) -> tuple[Rank, Rank]:
    """A prefill and a decode rank, open to each other."""
    prefill, decode = start("p", RoleName.PREFILL, **how), start("d", RoleName.DECODE, **how)
    decode.tell("meet", prefill.member)
    assert prefill.heard() == ["opened", "d", 1, 0]
    assert decode.heard() == ["opened", "p", 1, 0]
    return prefill, decode


def rise(prefill: Rank, counts: Path) -> None:
    """A zombie that has written the whole pool of d more than once."""
    counts.touch()
    prefill.tell("rise", "d", str(counts))
    eventually(lambda: writes(counts).well >= 2, "a write ends well before anything is fenced")


def watch(counts: Path) -> None:
    """Until the zombie has tried again, and failed every time."""
    before = writes(counts)
    eventually(lambda: writes(counts).failed >= before.failed + ATTEMPTS, "the zombie tries again")
    assert writes(counts).well == before.well


def test_nothing_lands_after_the_fence_though_the_writer_goes_on(start: Start, counts: Path) -> None:
    prefill, decode = pair(start)
    rise(prefill, counts)
    decode.tell("fence", "p")
    assert [decode.heard() for _ in range(3)] == [["lost", "p"], ["fenced", "p"], ["opened", "p", 1, 0]]
    watch(counts)
    assert decode.ask("landed") == 0
    assert [prefill.heard() for _ in range(2)] == [["lost", "d"], ["opened", "d", 1, 1]]
    prefill.tell("lie down")
    hand_over(prefill, decode)


def test_nothing_of_a_writer_that_was_stopped_in_the_middle_lands_when_it_goes_on(start: Start, counts: Path) -> None:
    prefill, decode = pair(start)
    rise(prefill, counts)
    prefill.pause()
    while not writes(counts).under_way:
        prefill.go_on()
        prefill.pause()
    well = writes(counts).well
    decode.tell("fence", "p")
    assert [decode.heard() for _ in range(2)] == [["lost", "p"], ["fenced", "p"]]
    prefill.go_on()
    watch(counts)
    assert writes(counts).well == well, "the write that was under way did not end well either"
    assert decode.heard() == ["opened", "p", 1, 0]
    assert decode.ask("landed") == 0
    prefill.tell("lie down")
    assert [prefill.heard() for _ in range(2)] == [["lost", "d"], ["opened", "d", 1, 1]]
    hand_over(prefill, decode)


def test_a_writer_that_fences_its_own_writes_reads_nothing_more(start: Start, counts: Path) -> None:
    """The receiver is stopped in the middle of a write, and goes on after the fence."""
    prefill, decode = pair(start, environment={"MC_TRANSFER_TIMEOUT": "5"})
    rise(prefill, counts)
    decode.pause()
    eventually(lambda: writes(counts).under_way, "a write hangs")
    prefill.tell("fence", "d")
    assert prefill.heard() == ["lost", "d"]
    prefill.tell("lie down")
    assert prefill.ask("refused") == 0, "its loop turns while the fence waits for the write"
    assert prefill.heard() == ["fenced", "d"]
    decode.go_on()
    assert prefill.heard() == ["opened", "d", 1, 0]
    decode.until(["opened", "p", 1, 1])
    assert not decode.ask("secret")
    decode.tell("fence", "p")  # what the system still held of the old write may land until then
    assert [decode.heard() for _ in range(3)] == [["lost", "p"], ["fenced", "p"], ["opened", "p", 1, 1]]
    assert [prefill.heard() for _ in range(2)] == [["lost", "d"], ["opened", "d", 1, 1]]
    prefill.tell("restore")
    hand_over(prefill, decode)


def test_a_rank_that_is_silent_at_first_contact_holds_up_no_other_group(start: Start) -> None:
    prefill = start("p", RoleName.PREFILL, scale=20.0)
    stuck, healthy = start("stuck", RoleName.DECODE), start("healthy", RoleName.DECODE)
    prefill.tell("hold", "stuck")
    stuck.tell("meet", prefill.member)
    assert prefill.heard() == ["reaching", "stuck"]
    stuck.pause()
    prefill.tell("reach", "stuck")
    healthy.tell("meet", prefill.member)
    assert prefill.heard() == ["opened", "healthy", 1, 0]
    assert healthy.heard() == ["opened", "p", 1, 0]
    hand_over(prefill, healthy)
    assert prefill.ask("refused") == 0, "the first contact goes on"
    assert prefill.silent()
    stuck.go_on()
    assert prefill.heard() == ["opened", "stuck", 1, 0]
    assert stuck.heard() == ["opened", "p", 1, 0]
    hand_over(prefill, stuck)


# the same ports


@pytest.fixture
def elsewhere() -> Iterator[list[str]]:
    """A command that runs another one on a network of its own, where a port is free as soon as it is closed."""
    setup = "ip link set lo up && echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets && echo ready && exec sleep infinity"
    order = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", setup]
    with subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said != "ready\n":
            holder.kill()
            missing(f"this machine lets nobody have a network of his own: {said}")
        yield ["nsenter", f"--target={holder.pid}", "--user", "--net", "--preserve-credentials"]
        holder.kill()


def two_ports(first: int) -> dict[str, str]:
    """All that an engine may choose from, and it needs two: only which of them is its endpoint is left to chance."""
    return {"MC_MIN_RPC_PORT": str(first), "MC_MAX_RPC_PORT": str(first + 1)}


def at_the_same_endpoint(start: Start, elsewhere: list[str], endpoint: str, ports: dict[str, str]) -> Rank:
    while True:
        successor = start("d", RoleName.DECODE, 2, inside=elsewhere, environment=ports)
        if successor.ask("endpoint", "p") == endpoint:
            return successor
        successor.stop()


@pytest.mark.parametrize("same_ports", [True, False], ids=["same ports", "another port for the bytes"])
def test_who_restarts_at_the_same_endpoint_is_not_written_what_was_meant_for_the_one_before(
    start: Start, counts: Path, elsewhere: list[str], same_ports: bool
) -> None:
    prefill = start("p", RoleName.PREFILL, inside=elsewhere)
    decode = start("d", RoleName.DECODE, inside=elsewhere, environment=two_ports(PORT))
    endpoint = decode.ask("endpoint", "p")
    decode.tell("meet", prefill.member)
    assert prefill.heard() == ["opened", "d", 1, 0]
    assert decode.heard() == ["opened", "p", 1, 0]
    hand_over(prefill, decode)
    rise(prefill, counts)
    decode.stop()
    beside = PORT if same_ports else PORT - 1 if endpoint.endswith(str(PORT)) else PORT + 1
    successor = at_the_same_endpoint(start, elsewhere, endpoint, two_ports(beside))
    watch(counts)
    successor.tell("meet", prefill.member)
    assert [prefill.heard() for _ in range(2)] == [["lost", "d"], ["opened", "d", 2, 0]]
    assert successor.heard() == ["opened", "p", 1, 0]
    watch(counts)
    assert successor.ask("landed") == 0
    prefill.tell("lie down")
    hand_over(prefill, successor)
