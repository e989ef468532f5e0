"""Real Mooncake over TCP on 127.0.0.1 between two processes, each with a pool of pages."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import mooncake_node
import pytest
from nodes import DEADLINE_S, PAGES, Node, expect
from waiting import stop_still

Start = Callable[[int], Node]


@pytest.fixture
def node() -> Iterator[Start]:
    """Starts nodes; none outlives its test."""
    started: list[Node] = []

    def start(seed: int) -> Node:
        started.append(Node(mooncake_node.__file__, seed))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_contiguous_and_scattered_pages_land_byte_exact(node: Start) -> None:
    source, target = node(1), node(2)
    assert source.connect(target.endpoint, DEADLINE_S) == ""
    contiguous = [(page, page + 100) for page in range(64)]
    shuffled = random.Random(5).sample(range(1000, 3000), 400)
    scattered = list(zip(range(3000, 3400), shuffled, strict=True))
    assert source.write(target, contiguous + scattered) == "ok"
    expect(target, 2, (1, contiguous + scattered))


def test_three_thousand_blocks_that_cannot_be_joined(node: Start) -> None:
    source, target = node(1), node(2)
    pages = [(page * 2, PAGES - 2 - page * 2) for page in range(3000)]
    assert source.write(target, pages) == "ok"
    expect(target, 2, (1, pages))


def test_an_address_that_is_not_registered_fails_and_crashes_nobody(node: Start) -> None:
    source, target = node(1), node(2)
    assert source.write(target, [(0, PAGES + 100)]) == "failed_unsettled"
    assert source.write(target, [(0, 1)]) == "ok"
    expect(target, 2, (1, [(0, 1)]))


def test_a_write_to_a_dead_peer_fails(node: Start) -> None:
    source, target = node(1), node(2)
    assert source.write(target, [(0, 0)]) == "ok"
    target.stop()
    assert source.write(target, [(0, 0)]) == "failed_unsettled"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "no-such-host:1", "nonsense"])
def test_connecting_to_nobody_fails_within_the_deadline(node: Callable[[int], Node], endpoint: str) -> None:
    assert "cannot be reached" in node(1).connect(endpoint, DEADLINE_S)  # by then it would be "was silent"


def test_connecting_to_a_stopped_peer_fails_within_the_deadline(node: Start) -> None:
    source, target, other = node(1), node(2), node(3)
    stop_still(target.process.pid)
    for _ in range(2):
        assert "was silent for 0.5 s" in source.connect(target.endpoint, 0.5)
    assert source.connect(other.endpoint, DEADLINE_S) == "", "others are not held up"
    assert source.write(other, [(0, 0)]) == "ok"
    target.process.send_signal(signal.SIGCONT)
    assert source.connect(target.endpoint, DEADLINE_S) == ""


def test_what_is_closed_writes_nothing_and_is_written_nothing(node: Start) -> None:
    source, target = node(1), node(2)
    assert source.write(target, [(0, 0)]) == "ok"
    target.ask("close")
    target.ask("close")  # once more does no harm
    assert source.write(target, [(1, 1)]) == "failed_unsettled"
    assert target.write(source, [(0, 0)]) == "failed_settled"
    assert "rc -1" in target.connect(source.endpoint, DEADLINE_S)
    expect(target, 2, (1, [(0, 0)]))
    expect(source, 1)


def test_a_peer_of_another_kind_is_no_peer(node: Start) -> None:
    assert "mooncake-rdma" in node(1).ask("connect_kind", "127.0.0.1:1", "mooncake-rdma")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["rdma"], {}, "ibv_devices lists a device"),
        (["rdma"], {"MC_FORCE_TCP": "1"}, "MC_FORCE_TCP is set"),
        (["tcp"], {"MC_FORCE_HCA": "1"}, "MC_FORCE_HCA is set"),
        (["tcp"], {"MC_LOG_DIR": "/tmp"}, "MC_LOG_DIR is set"),
        (["tcp"], {"MC_TE_METADATA_REFRESH_INTERVAL_SECONDS": "1"}, "REFRESH_INTERVAL_SECONDS is set"),
        (["quic"], {}, "choose tcp or rdma"),
    ],
)
def test_a_protocol_that_would_not_be_used_is_refused(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    """No RDMA device on the machines that run this; Mooncake itself would fall back to TCP and say nothing."""
    code = (
        "import sys; from kvtransfer.transports.mooncake import MooncakeTransport as M\n"
        "from tandem.core.errors import ConfigError\n"
        "try: M('127.0.0.1', *sys.argv[1:])\n"
        "except ConfigError as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert message in ran.stdout
