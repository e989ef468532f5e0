"""One transport per peer group: made when needed, ended by a fence that waits for writes, and only by that."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from peer_rig import ReachingTransport, Transports, hello
from waiting import eventually

from kvtransfer import edges as edges_module
from kvtransfer.edges import Edges
from tandem.core.errors import ConfigError
from tandem.core.messages import Hello


@pytest.fixture
def transports() -> Transports:
    return Transports("d0")


def at(endpoint: str, incarnation: int = 1) -> Hello:
    """A decode rank of group p that can be reached there."""
    return Hello("p", hello("p").rank, 1, incarnation, "f", "copy", endpoint, hello("p").region)


def off_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_rank_that_can_have_no_transport_is_told_so_at_its_start(transports: Transports) -> None:
    transports.broken = True
    with pytest.raises(ConfigError, match="no transport today"):
        Edges(transports)


def test_each_group_has_its_own_and_keeps_it(transports: Transports) -> None:
    edges = Edges(transports)
    opened = [edges.open(group) for group in ("p", "q", "p")]
    assert opened == [transports.made[0], transports.made[1], transports.made[0]], "the first one was made at the start"
    assert edges.kind == "copy"


def test_there_is_none_before_it_is_opened_or_after_a_fence(transports: Transports) -> None:
    edges = Edges(transports)
    with edges.using("p") as transport:
        assert transport is None
    edges.open("p")
    with edges.using("p") as transport:
        assert transport is transports.made[0]
    edges.fence("p")
    with edges.using("p") as transport:
        assert transport is None
    assert transports.made[0].closed
    assert edges.open("p") is transports.made[1]


def test_a_fence_waits_for_whoever_uses_the_transport_and_lets_nobody_else_in(transports: Transports) -> None:
    edges = Edges(transports)
    edges.open("p")
    with edges.using("p"):
        fencing = off_thread(lambda: edges.fence("p"))
        eventually(lambda: edges._edges["p"].gate.shut)
        with edges.using("p") as late:
            assert late is None
        assert fencing.is_alive()
    fencing.join()
    assert transports.made[0].closed


def test_a_fence_that_cannot_be_done_is_no_fence_and_can_be_done_later(
    transports: Transports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges_module, "LEAVE_S", 0.0)
    edges = Edges(transports)
    edges.open("p")
    with edges.using("p"), pytest.raises(TimeoutError, match="a write to p"):
        edges.fence("p")
    with edges.using("p") as transport:
        assert transport is None, "it stays shut"
    assert edges.open("p") is transports.made[0], "it has not gone"
    edges.fence("p")
    assert edges.open("p") is transports.made[1]


def test_a_stuck_transport_holds_up_no_other_group(transports: Transports) -> None:
    edges = Edges(transports)
    stuck = edges.open("p")
    assert isinstance(stuck, ReachingTransport)
    stuck.may_close.clear()
    fencing = off_thread(lambda: edges.fence("p"))
    eventually(lambda: edges._edges["p"].gate.shut)
    edges.open("q")
    edges.fence("q")
    with edges.using("q") as transport:
        assert transport is None
    assert fencing.is_alive()
    stuck.may_close.set()
    fencing.join()


def test_another_incarnation_at_a_known_endpoint_gets_a_new_transport(transports: Transports) -> None:
    """The old one would take it for the one before."""
    edges = Edges(transports)
    for incarnation in (1, 1):
        assert edges.connect(at("host:1", incarnation), 1.0) is transports.made[0]
    assert edges.connect(at("host:2", 7), 1.0) is transports.made[0]
    assert edges.connect(at("host:1", 2), 1.0) is transports.made[1]
    assert transports.made[0].closed
    assert edges.connect(at("host:1", 2), 1.0) is transports.made[1]


def test_two_incarnations_at_one_endpoint_never_share_a_transport(
    transports: Transports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when a fence comes right after the one that the first was met with has been opened."""
    edges = Edges(transports)
    edges.open("p")
    lock = edges._lock

    @contextmanager
    def locked_then_fenced(group: str) -> Iterator[None]:
        with lock(group):
            yield
        monkeypatch.undo()
        edges.fence(group)

    monkeypatch.setattr(edges, "_lock", locked_then_fenced)
    assert edges.connect(at("host:1", 1), 1.0) is not edges.connect(at("host:1", 2), 1.0)


def test_two_ranks_whose_group_has_restarted_end_the_old_transport_once(
    transports: Transports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find out that it is old; the second one leaves the new one to the first."""
    edges = Edges(transports)
    for endpoint in ("host:1", "host:2"):
        edges.connect(at(endpoint), 1.0)
    lock = edges._lock

    @contextmanager
    def locked_and_then_overtaken(group: str) -> Iterator[None]:
        with lock(group):
            yield
        monkeypatch.undo()
        edges.connect(at("host:1", 2), 1.0)

    monkeypatch.setattr(edges, "_lock", locked_and_then_overtaken)
    assert edges.connect(at("host:2", 2), 1.0) is transports.made[1]
    assert [transport.closed for transport in transports.made] == [True, False]


def test_a_transport_that_could_not_be_ended_is_no_dead_end_for_the_others_of_its_group(
    transports: Transports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank for whose sake it was to end may never call again."""
    monkeypatch.setattr(edges_module, "LEAVE_S", 0.0)
    edges = Edges(transports)
    edges.connect(at("host:1"), 1.0)
    with edges.using("p"), pytest.raises(TimeoutError, match="a write to p"):
        edges.connect(at("host:1", 2), 1.0)
    assert edges.connect(at("host:2"), 1.0) is transports.made[1]


def test_a_silent_endpoint_is_an_error(transports: Transports) -> None:
    edges = Edges(transports)
    transports.made[0].dead.add("host:1")
    with pytest.raises(ConnectionError, match="host:1 was silent"):
        edges.connect(at("host:1"), 1.0)


def test_there_is_an_end_to_groups(transports: Transports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges_module, "MAX_GROUPS", 2)
    edges = Edges(transports)
    for group in ("p", "q", "p"):
        edges.open(group)
    with pytest.raises(ConnectionError, match="r is one more than the 2 groups"):
        edges.open("r")


def test_closing_ends_all(transports: Transports) -> None:
    edges = Edges(transports)
    edges.close()
    assert transports.made[0].closed, "also the one that nobody has used"
    edges = Edges(transports)
    for group in ("p", "q"):
        edges.open(group)
    edges.close()
    assert all(transport.closed for transport in transports.made)


def test_nothing_is_opened_after_the_close(transports: Transports) -> None:
    """Somebody may still be about to, on a thread of its own: it would be fenced by nobody."""
    edges = Edges(transports)
    edges.close()
    with pytest.raises(ConnectionError, match="have been closed"):
        edges.open("p")
    assert len(transports.made) == 1
