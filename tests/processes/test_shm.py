"""The shm transport between processes with a pool of pages each: what lands, what does not, and what is known of it."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import shm_node
from cluster import Cluster
from fake_model import FAKE, all_answered_right, answers_right
from nodes import DEADLINE_S, PAGES, Node, Pairs, expect
from waiting import eventually, stop_still

APART = [(page * 2, PAGES - 2 - page * 2) for page in range(3000)]
"""No two of these can be joined."""
HALF = 50
"""Blocks that are copied before a gate."""


class ShmNode(Node):
    """A Node that runs shm_node: its copies can be held up at a gate, and it can work on an order in the background."""

    def begin(self, *order: Any) -> None:
        """In the background."""
        self.ask("begin", *order)

    def result(self) -> Any:
        """How that ended."""
        return self.ask("result")

    def gate(self) -> None:
        """Hold up the copying after HALF blocks from now on."""
        self.ask("gate", HALF)

    def at_gate(self) -> None:
        """Wait until it is held up."""
        eventually(lambda: self.ask("at_gate"), "the copying has come to the gate")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., ShmNode]]:
    """Starts nodes, by seed and name; none outlives its test."""
    tmp_path.chmod(0o700)
    started: list[ShmNode] = []

    def start(seed: int, name: str = "") -> ShmNode:
        started.append(ShmNode(shm_node.__file__, seed, str(tmp_path), name or str(seed)))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def in_order(count: int) -> Pairs:
    """Pages that are copied one by one, in this order, as no two are neighbours."""
    return [(page * 2, page * 2) for page in range(count)]


def test_contiguous_and_scattered_pages_land_byte_exact(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    assert source.connect(target.endpoint, DEADLINE_S) == ""
    contiguous = [(page, page + 100) for page in range(64)]
    shuffled = random.Random(5).sample(range(1000, 3000), 400)
    scattered = list(zip(range(3000, 3400), shuffled, strict=True))
    assert source.write(target, contiguous + scattered) == "ok"
    expect(target, 2, (1, contiguous + scattered))


def test_three_thousand_blocks_that_cannot_be_joined(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    assert source.write(target, APART) == "ok"
    expect(target, 2, (1, APART))


def test_two_writers_at_once_both_land(node: Callable[..., ShmNode]) -> None:
    sources, target = [node(1), node(3)], node(2)
    pages = [[(page, page * 2 + lane) for page in range(2000)] for lane in range(2)]
    for source, lane in zip(sources, pages, strict=True):
        source.begin(*source.writing(target, lane))
    assert [source.result() for source in sources] == ["ok", "ok"]
    expect(target, 2, (1, pages[0]), (3, pages[1]))


@pytest.mark.parametrize("outside", [(0, PAGES), (0, -1), (2 * PAGES, 0), (-1, 0), (0, 2**40)])
def test_of_a_request_that_reaches_outside_nothing_is_copied(
    node: Callable[..., ShmNode], outside: tuple[int, int]
) -> None:
    source, target = node(1), node(2)
    assert source.write(target, [(3, 3), outside, (7, 7)]) == "failed_settled"
    expect(target, 2)
    assert source.write(target, [(3, 3)]) == "ok", "the writer is not held to be mad for ever"
    expect(target, 2, (1, [(3, 3)]))


# fences


def test_a_receiver_that_closes_halfway_copies_nothing_more(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    target.gate()
    source.begin(*source.writing(target, pages := in_order(100)))
    target.at_gate()
    target.begin("close")
    eventually(lambda: target.ask("stops"), "it is told to copy nothing more")
    assert not target.ask("ended"), "a copy is in progress"
    target.ask("open")
    target.result()
    landed = pages[: HALF + 1]
    expect(target, 2, (1, landed))
    assert source.result() == "failed_settled", "it is certain that the rest never lands"
    assert source.write(target, pages) == "failed_settled"
    expect(target, 2, (1, landed))


def test_a_writer_that_keeps_trying_reaches_nothing_behind_a_fence(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    source.ask("keep", *source.writing(target, in_order(1000)))
    eventually(lambda: source.ask("tries") > 3, "it writes again and again, something new each time")
    assert target.ask("close") is None
    fenced, before = target.digests(), source.ask("tries")
    eventually(lambda: source.ask("tries") > before + 100, "it goes on trying")
    assert target.digests() == fenced
    assert source.ask("last") == "failed_settled"


def test_a_transport_that_closes_ends_its_own_writes(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    target.gate()
    source.begin(*source.writing(target, in_order(100)))
    target.at_gate()
    assert source.ask("close") is None, "although the receiver is held up"
    assert source.result() == "failed_unsettled", "for the receiver may go on"
    assert source.write(target, [(0, 0)]) == "failed_settled"


# peers that stop, die and come back


def test_a_stopped_receiver_leaves_a_write_unsettled_and_serves_when_it_goes_on(node: Callable[..., ShmNode]) -> None:
    source, target, other = node(1), node(2), node(3)
    assert source.write(target, [(0, 0)]) == "ok"
    stop_still(target.process.pid)
    assert source.write(target, [(1, 1)], 1.0) == "failed_unsettled"
    assert source.write(target, [(2, 2)], 0.3) == "failed_settled", "nothing could be asked of it any more"
    assert "was silent" in source.connect(target.endpoint, 0.3)
    assert source.write(other, [(0, 0)]) == "ok", "others are not held up"
    target.process.send_signal(signal.SIGCONT)
    assert source.connect(target.endpoint, DEADLINE_S) == ""
    assert source.write(target, [(3, 3)]) == "ok"
    expect(target, 2, (1, [(0, 0), (3, 3)]))  # nobody waited for the others any more


def test_a_receiver_that_dies_halfway_has_settled_the_write(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    target.gate()
    source.begin(*source.writing(target, in_order(100)))
    target.at_gate()
    target.stop()
    assert source.result() == "failed_settled"
    assert "cannot be reached" in source.connect(target.endpoint, DEADLINE_S)


def test_a_writer_that_dies_halfway_leaves_the_receiver_fine(node: Callable[..., ShmNode]) -> None:
    source, target, other = node(1), node(2), node(3)
    target.gate()
    source.begin(*source.writing(target, pages := in_order(100)))
    target.at_gate()
    source.stop()
    target.ask("open")
    last = [(7, PAGES - 1)]
    assert other.write(target, last) == "ok"
    expect(target, 2, (1, pages), (3, last))  # what had been asked has landed whole: its memory outlived the writer


def test_a_receiver_that_was_restarted_is_not_taken_for_the_one_before_it(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2, "d0")
    assert source.write(target, [(0, 0)]) == "ok"
    target.stop()
    again = node(2, "d0")
    assert again.endpoint != target.endpoint
    assert again.endpoint.rpartition(":")[2] == target.endpoint.rpartition(":")[2], "it is the same path"
    assert source.write(target, [(1, 1)]) == "failed_settled"
    assert "is gone: another process listens there now" in source.connect(target.endpoint, DEADLINE_S)
    expect(again, 2)
    assert source.connect(again.endpoint, DEADLINE_S) == ""
    assert source.write(again, [(2, 2)]) == "ok"
    expect(again, 2, (1, [(2, 2)]))


def test_many_restarts_leave_no_files_open(node: Callable[..., ShmNode]) -> None:
    source = node(1)
    files = []
    for _ in range(3):
        target = node(2, "d0")
        assert source.write(target, [(0, 0)]) == "ok"
        files.append(len(os.listdir(f"/proc/{source.process.pid}/fd")))
        target.stop()
    assert files == [files[0]] * 3


# those that are no peers


def test_a_peer_on_another_host_is_told_to_use_mooncake(node: Callable[..., ShmNode]) -> None:
    source, target = node(1), node(2)
    _, _, rest = target.endpoint.partition(":")
    assert "--disaggregation-transfer-backend mooncake" in source.connect(f"another-host:{rest}", DEADLINE_S)


def test_a_peer_of_another_kind_is_no_peer(node: Callable[..., ShmNode]) -> None:
    assert "mooncake-tcp" in node(1).ask("connect_kind", "127.0.0.1:1", "mooncake-tcp")


@pytest.mark.parametrize("endpoint", ["", "nonsense", "{host}:0:/no/such/path", "{host}:0:", "{host}"])
def test_connecting_to_nobody_fails(node: Callable[..., ShmNode], endpoint: str) -> None:
    source = node(1)
    host, _, _ = source.endpoint.partition(":")
    assert source.connect(endpoint.format(host=host), DEADLINE_S) != ""


# a whole cluster


def test_a_cluster_answers_right_over_shm_and_loads_no_other_transport(cluster_of: Callable[..., Cluster]) -> None:
    shape = ("--prefill-pp", "2", "--decode-pp", "1")
    cluster = cluster_of(*FAKE, *shape, "--disaggregation-transfer-backend", "shm")
    for seed, length in enumerate((1, 16, 17, 300, 1500)):
        rng = random.Random(seed)
        answers_right(cluster, [rng.randrange(32, 127) for _ in range(length)], rng, seed)
    all_answered_right(cluster, [[32 + number] * 100 for number in range(16)], max_tokens=30)
    for name in cluster.http:
        assert "mooncake" not in Path(f"/proc/{cluster.pids[name]}/maps").read_text(), name
