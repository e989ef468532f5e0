"""The handshake between prefill and decode ranks, over real sockets in one process."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq

from kvtransfer.handshake import HELLO_S, MISSING_S, REFRESH_S, identity
from kvtransfer.peer_link import PeerLink
from tandem.core.config import Group, Limits, RoleName
from tandem.core.events import Event, PeerLost, PeerOpened, Written
from tandem.core.ids import LayerId, RankId, RequestId, Room
from tandem.core.inputs import FirstToken
from tandem.core.members import Member
from tandem.core.messages import Cancelled, Commit, Grant, Hello, Quiet, Region
from tandem.core.requests import Reason
from tandem.runtime.links import Sockets, encode, post

DEADLINE_S = 10
ROOM = Room(RequestId(1), 0)
REGION = Region(0, LayerId(0), LayerId(2), 8, 64)


class ReachingTransport:
    """Reaches everybody but the endpoints that are told off; those make it wait for the gate or fail."""

    kind = "copy"
    endpoint = "here"

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.connects = 0

    def register(self, base: int, length: int) -> None: ...

    def connect(self, peer: Hello, deadline_s: float) -> None:
        self.connects += 1
        assert self.gate.wait(DEADLINE_S)
        if peer.endpoint in self.dead:
            raise ConnectionError(f"{peer.endpoint} was silent")

    def write(self, peer: Hello, blocks: Sequence[tuple[int, int, int]], deadline_s: float) -> Written:
        raise NotImplementedError

    def close(self) -> None: ...


def hello(group: str, rank: int = 0, incarnation: int = 1) -> Hello:
    return Hello(group, RankId(rank), 1, incarnation, "fingerprint", "copy", f"{group}{rank}", REGION)


def member(mine: Hello, role: RoleName, peers: str) -> Member:
    group = Group(role, mine.group, (2,))
    return Member(group, mine.rank, mine.incarnation, 0, "h", "f", "m", "", "", "", Limits(), peers=peers)


class Rig:
    """Any number of ranks in one process, each with its link and everything it has heard."""

    def __init__(self, directory: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets = Sockets(self.context, b"secret")
        self.directory = directory
        self.now_s = 0.0
        self.links: dict[PeerLink, list[Event]] = {}
        self.members: dict[PeerLink, Member] = {}
        self.woken = threading.Event()

    def rank(self, role: RoleName, mine: Hello, transport: ReachingTransport | None = None) -> PeerLink:
        made = PeerLink(mine, self.sockets, transport or ReachingTransport(), role, self.directory, self.woken.set)
        self.links[made] = []
        self.members[made] = member(mine, role, made.address)
        return made

    def gone(self, link: PeerLink) -> None:
        del self.links[link], self.members[link]
        link.close()

    def introduce(self) -> None:
        for link in self.links:
            link.on_members(list(self.members.values()))

    def pump(self) -> None:
        for link, heard in list(self.links.items()):
            heard.extend(link.receive())

    def step(self, seconds: float) -> bool:
        self.now_s += seconds
        for link in self.links:
            link.tick(self.now_s)
        return False

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, {link.address: heard for link, heard in self.links.items()}
            self.pump()
            self.introduce()
            os.sched_yield()

    def until_heard(self, link: PeerLink, *events: Event) -> None:
        self.until(lambda: self.links[link] == list(events))
        self.links[link].clear()

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.sockets.close()
        self.context.term()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    tmp_path.chmod(0o700)
    made = Rig(str(tmp_path))
    yield made
    made.close()


def pair(rig: Rig) -> tuple[PeerLink, PeerLink]:
    """A prefill rank p/0 and a decode rank d/0, open to each other."""
    prefill, decode = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d"))
    rig.introduce()
    rig.until_heard(prefill, PeerOpened(hello("d")))
    rig.until_heard(decode, PeerOpened(hello("p")))
    return prefill, decode


def test_both_sides_open(rig: Rig) -> None:
    prefill, decode = pair(rig)
    assert prefill.hello("d", RankId(0)) == hello("d")
    assert decode.hello("p", RankId(0)) == hello("p")
    assert prefill.hello("d", RankId(1)) is None
    assert prefill.address
    assert not decode.address
    assert rig.woken.is_set(), "the end of connect wakes the poller"


def test_every_pair_of_ranks_opens(rig: Rig) -> None:
    prefills = [rig.rank(RoleName.PREFILL, hello("p", rank)) for rank in range(3)]
    decodes = [rig.rank(RoleName.DECODE, hello(group, rank)) for group in ("d", "e") for rank in range(2)]
    rig.until(lambda: all(len(heard) == (4 if link in prefills else 3) for link, heard in rig.links.items()))
    assert len(decodes[0].sockets()) == 3
    assert len(prefills[0].sockets()) == 1


def test_control_messages_pass_both_ways(rig: Rig) -> None:
    prefill, decode = pair(rig)
    grant, cancelled = Grant("d", ROOM, RankId(0), 0, ()), Cancelled("d", ROOM, Reason.DEADLINE)
    for up in (grant, cancelled):
        decode.send("p", RankId(0), up)
    rig.until_heard(prefill, grant, cancelled)
    down = (Commit(ROOM, LayerId(1), 0, 16), FirstToken(ROOM, 5), Quiet(ROOM), Cancelled("p", ROOM, Reason.DEADLINE))
    for message in down:
        prefill.send("d", RankId(0), message)
    rig.until_heard(decode, *down)


def test_a_message_to_a_peer_that_is_not_open_is_counted(rig: Rig) -> None:
    prefill, decode = pair(rig)
    prefill.send("x", RankId(0), Quiet(ROOM))
    decode.send("x", RankId(0), Quiet(ROOM))
    assert prefill.counts["unsent"] == decode.counts["unsent"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("fingerprint", "other"), ("transport", "shm"), ("region", msgspec.structs.replace(REGION, block_bytes=65))],
)
def test_what_does_not_fit_is_refused_by_name(rig: Rig, field: str, value: object) -> None:
    prefill = rig.rank(RoleName.PREFILL, hello("p"))
    decode = rig.rank(RoleName.DECODE, msgspec.structs.replace(hello("d"), **{field: value}))
    rig.until(lambda: bool(decode.refusals()))
    (detail,) = decode.refusals().values()
    assert "p/0 has" in detail
    assert "d/0 has" in detail
    assert prefill.counts["refused"] >= 1
    assert rig.links[prefill] == rig.links[decode] == []


def test_a_peer_that_cannot_be_written_to_is_refused_and_tried_again(rig: Rig) -> None:
    transport = ReachingTransport()
    transport.dead.add("d0")
    prefill = rig.rank(RoleName.PREFILL, hello("p"), transport)
    decode = rig.rank(RoleName.DECODE, hello("d"))
    rig.until(lambda: "d0 was silent" in decode.refusals().get(("p", RankId(0)), ""))
    transport.dead.clear()
    rig.step(REFRESH_S)
    rig.until_heard(decode, PeerOpened(hello("p")))
    rig.until_heard(prefill, PeerOpened(hello("d")))
    assert decode.refusals() == {}


def test_a_silent_peer_holds_up_nobody_else(rig: Rig) -> None:
    """The first connect hangs; a second decode rank, and the tick loop, go on."""
    transport = ReachingTransport()
    transport.gate.clear()
    prefill = rig.rank(RoleName.PREFILL, hello("p"), transport)
    rig.rank(RoleName.DECODE, hello("d"))
    rig.until(lambda: transport.connects == 1)
    rig.step(HELLO_S)
    rig.rank(RoleName.DECODE, hello("e"))
    rig.until(lambda: transport.connects == 2)
    assert rig.links[prefill] == []
    transport.gate.set()
    rig.until(lambda: len(rig.links[prefill]) == 2)
    assert transport.connects == 2, "a repeated Hello starts no second connect"


def test_another_incarnation_of_a_decode_rank_loses_the_first(rig: Rig) -> None:
    prefill, decode = pair(rig)
    rig.gone(decode)
    rig.rank(RoleName.DECODE, hello("d", incarnation=2))
    rig.until_heard(prefill, PeerLost("d", RankId(0)), PeerOpened(hello("d", incarnation=2)))


def test_another_incarnation_of_a_prefill_rank_loses_the_first(rig: Rig) -> None:
    prefill, decode = pair(rig)
    rig.gone(prefill)
    rig.rank(RoleName.PREFILL, hello("p", incarnation=2))
    rig.until_heard(decode, PeerLost("p", RankId(0)), PeerOpened(hello("p", incarnation=2)))


def test_a_prefill_rank_that_came_back_unnoticed_is_found_by_the_refresh(rig: Rig) -> None:
    """On the same address, and the registry has not said so."""
    prefill, decode = pair(rig)
    stale = rig.members[prefill]
    rig.gone(prefill)
    reborn = rig.rank(RoleName.PREFILL, hello("p", incarnation=2))
    rig.members[reborn] = stale
    decode.send("p", RankId(0), Grant("d", ROOM, RankId(0), 0, ()))
    expected = [PeerLost("p", RankId(0)), PeerOpened(hello("p", incarnation=2))]
    rig.until(lambda: rig.step(REFRESH_S) or rig.links[decode] == expected)
    assert [type(event) for event in rig.links[reborn]] == [PeerOpened], "no grant of the old session"


def test_a_late_hello_of_a_dead_incarnation_changes_nothing(rig: Rig) -> None:
    prefill, decode = pair(rig)
    address = rig.members[prefill].peers
    rig.gone(decode)
    rig.rank(RoleName.DECODE, hello("d", incarnation=2))
    rig.until_heard(prefill, PeerLost("d", RankId(0)), PeerOpened(hello("d", incarnation=2)))
    ghost = rig.sockets.connect(zmq.DEALER, address, identity(hello("d")))
    rig.until(lambda: post(ghost, encode(hello("d"))))
    rig.until(lambda: prefill.counts["stale"] == 1)
    assert prefill.hello("d", RankId(0)) == hello("d", incarnation=2)


def test_strangers_are_counted_and_not_heard(rig: Rig) -> None:
    """No Hello; a Hello that is not one's own; somebody else's grant; garbage."""
    prefill, _ = pair(rig)
    stranger = rig.sockets.connect(zmq.DEALER, rig.members[prefill].peers, b"stranger")
    rig.until(lambda: post(stranger, encode(Grant("d", ROOM, RankId(0), 0, ()))))
    post(stranger, encode(hello("d")))
    post(stranger, b"garbage")
    post(stranger, b"two", b"frames")
    rig.until(lambda: prefill.counts["stranger"] == 2 and prefill.counts["malformed"] == 2)
    assert rig.links[prefill] == []


def test_words_in_anothers_name_are_not_heard(rig: Rig) -> None:
    prefill, decode = pair(rig)
    decode.send("p", RankId(0), Grant("d", ROOM, RankId(1), 0, ()))
    decode.send("p", RankId(0), Cancelled("e", ROOM, Reason.DEADLINE))
    prefill.send("d", RankId(0), Cancelled("d", ROOM, Reason.DEADLINE))
    rig.until(lambda: prefill.counts["stranger"] == 2 and decode.counts["stranger"] == 1)
    assert rig.links[prefill] == rig.links[decode] == []


def test_a_rank_missing_from_the_registry_is_lost_after_a_while(rig: Rig) -> None:
    prefill, decode = pair(rig)
    for link in (prefill, decode):
        link.on_members([])
    rig.step(MISSING_S / 2)
    for link in (prefill, decode):
        link.on_members([rig.members[prefill]])
    rig.step(MISSING_S / 2)
    assert [*decode.receive()] == [], "it was back in time"
    prefill.on_members([])
    assert [*prefill.receive()] == [PeerLost("d", RankId(0))]
    assert prefill.hello("d", RankId(0)) is None


def test_sockets_change_only_when_the_members_do(rig: Rig) -> None:
    """The driver polls them between two such calls; a closed one would end it."""
    _, decode = pair(rig)
    decode.on_members([])
    rig.step(MISSING_S)
    assert [socket.closed for socket in decode.sockets()] == [False]
    decode.on_members([])
    assert decode.sockets() == []
    assert [*decode.receive()] == [PeerLost("p", RankId(0))]


def test_a_registry_that_restarted_empty_loses_nobody(rig: Rig) -> None:
    prefill, decode = pair(rig)
    for link in (prefill, decode):
        link.on_members([])
    rig.step(1)
    rig.introduce()
    rig.step(MISSING_S)
    for link in (prefill, decode):
        link.on_members([])
    rig.pump()
    assert rig.links[prefill] == rig.links[decode] == []


def test_a_lost_answer_is_given_again(rig: Rig) -> None:
    """A decode rank whose session was forgotten here but is open there says Hello again, and is answered."""
    prefill, decode = pair(rig)
    prefill.on_members([])
    rig.step(MISSING_S)
    prefill.on_members([])
    assert [*prefill.receive()] == [PeerLost("d", RankId(0))]
    rig.step(REFRESH_S)
    rig.until_heard(prefill, PeerOpened(hello("d")))
    assert rig.links[decode] == []
