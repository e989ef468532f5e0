"""A cluster without a registry: every rank is told where all ranks' HTTP ports are, and they ask each other."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest
from by_hand import ByHand, pair
from fake_model import LAYERS, complete, expected
from members import member
from ports import free_ports
from waiting import DEADLINE_S, eventually

from tandem.core.errors import ConfigError
from tandem.runtime import peer_list
from tandem.runtime.entries import Entries
from tandem.runtime.health import Answers, Health
from tandem.runtime.peer_list import PeerList, places_of

ENTRIES = Entries("c", b"a secret of this cluster")
PROMPT = list(b"nobody keeps a list of who is there")
RANKS = ("p0.0", "p0.1", "d0.0", "d0.1")


class Peer:
    """A rank's port, and its list of all peers."""

    def __init__(self, port: int, peers: str, undo: ExitStack) -> None:
        self.entry = b""
        answers = Answers(lambda _: None, lambda *_: None, lambda _: b"", lambda: self.entry)
        health = Health("127.0.0.1", port, answers)
        undo.callback(health.close)
        self.now = 1000.0
        self.list = PeerList(places_of(peers), ENTRIES, self.show, lambda: self.now)
        undo.callback(self.list.close)

    def show(self, entry: bytes) -> None:
        self.entry = entry


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Peer, Peer]]:
    """Two, and a third address where nobody is. On a busy machine they answer later than a rank would wait."""
    monkeypatch.setattr(peer_list, "ASK_S", DEADLINE_S)
    ports = free_ports(3)
    named = ",".join(f"127.0.0.1:{port}" for port in ports)
    with ExitStack() as undo:
        yield Peer(ports[0], named, undo), Peer(ports[1], named, undo)


def test_peers_find_each_other_and_say_goodbye(peers: tuple[Peer, Peer]) -> None:
    one, two = peers
    assert one.list.publish(member(rank=0)) is None
    assert one.list.members() == [member(rank=0)], "the other has nothing to show yet"
    two.list.publish(member(rank=1))
    assert one.list.members() == two.list.members() == [member(rank=0), member(rank=1)]
    two.list.withdraw(member(rank=1))
    assert one.list.members() == [member(rank=0)]


def test_who_does_not_answer_is_believed_for_as_long_as_a_lease(
    peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = peers
    two.list.publish(member(rank=1))
    assert one.list.members() == [member(rank=1)]
    monkeypatch.setattr(one.list, "_ask", lambda place: None)
    one.now += 4.9
    assert one.list.members() == [member(rank=1)]
    one.now += 0.2
    assert one.list.members() == []


def test_who_can_hardly_be_asked_costs_nobody_else_its_place(
    peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a name server does not answer: nothing limits how long a name is looked for."""
    monkeypatch.setattr(peer_list, "ASK_S", 0.5)
    one, two = peers
    ask, asked, over = one.list._ask, [], threading.Event()

    def ask_slowly(place: tuple[str, int]) -> bytes | None:
        if place != one.list._peers[2]:
            return ask(place)
        asked.append(place)
        over.wait()
        return None

    monkeypatch.setattr(one.list, "_ask", ask_slowly)
    two.list.publish(member(rank=1))
    try:
        eventually(lambda: one.list.members() == [member(rank=1)], "who answers is heard beside who does not")
        assert one.list.members() == [member(rank=1)]
        assert len(asked) == 1, "it is asked once at a time"
    finally:
        over.set()


def test_a_list_of_which_nobody_answers_is_told_once_with_why(
    peers: tuple[Peer, Peer], caplog: pytest.LogCaptureFixture
) -> None:
    """As a router has one: a rank is in its own list, and answers itself."""
    caplog.set_level(logging.INFO, "tandem")
    one, two = peers

    def told() -> list[str]:
        return [message for message in caplog.messages if "--peers" in message]

    alone = PeerList(one.list._peers[1:], ENTRIES)
    here, nowhere = (f"{host}:{port}" for host, port in alone._peers)
    try:
        two.entry = b"another/key\nand no entry"
        for _ in range(3):
            assert alone.members() == []
        (warning,) = told()
        assert warning.startswith(f"none of --peers answers: {here}: what it shows is of another cluster or secret; ")
        assert f"; {nowhere}: [Errno " in warning, "connection refused"
        two.list.publish(member(rank=1))
        assert alone.members() == [member(rank=1)]
        two.entry = b"another/key\nand no entry"
        alone.members()
        assert told() == [warning, "--peers answer", warning]
    finally:
        alone.close()


def test_of_two_processes_in_one_place_the_later_one_has_it(peers: tuple[Peer, Peer]) -> None:
    one, two = peers
    later = msgspec.structs.replace(member(), incarnation=77, boot_ms=1)
    one.list.publish(member())
    two.list.publish(later)
    assert one.list.members() == two.list.members() == [later]
    assert one.list.publish(member()) == later, "so that it gives its place up"
    assert two.list.publish(later) == member()


@pytest.mark.parametrize("change", ["another secret", "another place", "no entry"])
def test_an_entry_that_is_not_signed_for_its_place_is_ignored(peers: tuple[Peer, Peer], change: str) -> None:
    one, two = peers
    key, value = ENTRIES.seal(member(rank=1))
    forged = {
        "another secret": Entries("c", b"another secret").seal(member(rank=1)),
        "another place": (key, ENTRIES.seal(member(rank=0))[1]),
        "no entry": ("", b"<html>"),
    }[change]
    two.entry = forged[0].encode() + b"\n" + forged[1]
    assert one.list.members() == []
    two.entry = key.encode() + b"\n" + value
    assert one.list.members() == [member(rank=1)]


@pytest.mark.parametrize(
    "peers",
    [
        *("", "h", "h:", ":7", "h:0", "h:65536", "h:7,", "h:٧", ",".join(["h:7"] * 1025)),
        *("http://h:7", "h h:7", "a..b:7", "h" * 64 + ":7"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_by_name(peers: str) -> None:
    with pytest.raises(ConfigError, match="--peers"):
        places_of(peers)


def test_a_list_may_name_hosts_and_addresses() -> None:
    assert places_of("pod-0.svc:7, 10.0.0.1:8,[fd00::1]:9") == [("pod-0.svc", 7), ("10.0.0.1", 8), ("fd00::1", 9)]


@pytest.mark.usefixtures("no_other_cluster")
def test_a_cluster_without_a_registry_serves_and_gets_over_a_death() -> None:
    with pair(f"--model=fake:{LAYERS}", "--disaggregation-transfer-backend=shm", peers=RANKS) as cluster:
        answers_right(cluster)
        epoch = cluster.members()["d0.0"].epoch
        cluster.kill("d0.1")
        cluster.start("d0.1")
        cluster.formed("d0", above=epoch)
        cluster.usable()
        answers_right(cluster)


@pytest.mark.usefixtures("no_other_cluster")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--http-port=0"], "--http-port is 0: with --peers give the port"),
        (["--registry-url=redis://127.0.0.1:1"], "both are given"),
        (["--peers="], "neither is given"),
        (["--peers=here"], "--peers has 'here'"),
    ],
)
def test_a_rank_that_could_not_be_found_does_not_start(flags: list[str], said: str) -> None:
    with ByHand(f"--model=fake:{LAYERS}", peers=["p0.0"], size=1) as cluster:
        cluster.start("p0.0", more=flags)
        assert cluster.status("p0.0") == 2
        assert said in cluster.log("p0.0")


def answers_right(cluster: ByHand) -> None:
    answer = complete(cluster, prompt=PROMPT, max_tokens=40, ignore_eos=True)
    assert answer["choices"][0]["text"] == expected(PROMPT, 40)
