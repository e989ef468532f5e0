"""The handshake between prefill and decode ranks, and what they say to each other, over real sockets in one process."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import zmq
from peer_rig import REGION, ROOM, Rig, hello, open_to, pair

from kvtransfer import answering, calling, reliable
from kvtransfer.handshake import HELLO_S, MISSING_S, REFRESH_S, identity
from kvtransfer.reliable import RESEND_S
from tandem.core.config import RoleName
from tandem.core.events import PeerLost, PeerOpened
from tandem.core.ids import Epoch, LayerId, RankId, RequestId, Room
from tandem.core.inputs import FirstToken
from tandem.core.messages import Cancelled, Commit, Grant, Numbered, Quiet
from tandem.core.requests import Reason
from tandem.runtime.links import encode, post


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    tmp_path.chmod(0o700)
    made = Rig(str(tmp_path))
    yield made
    made.close()


def test_both_sides_open(rig: Rig) -> None:
    prefill, decode = pair(rig)
    assert open_to(prefill, "d") == hello("d")
    assert open_to(decode, "p") == hello("p")
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
    prefill = rig.rank(RoleName.PREFILL, hello("p"))
    decode = rig.rank(RoleName.DECODE, hello("d"))
    (transport,) = rig.transports[prefill].made
    transport.dead.add("d0-0")
    rig.until(lambda: "d0-0 was silent" in decode.refusals().get(("p", RankId(0)), ""))
    assert "d0-0 was silent" in prefill.refusals()["d", RankId(0)]
    transport.dead.clear()
    rig.step(REFRESH_S)
    rig.until_heard(decode, PeerOpened(hello("p")))
    rig.until_heard(prefill, PeerOpened(hello("d")))
    assert decode.refusals() == prefill.refusals() == {}


def test_a_silent_peer_holds_up_nobody_else(rig: Rig) -> None:
    """The first connect hangs; a second decode rank of the group, and the tick loop, go on."""
    prefill = rig.rank(RoleName.PREFILL, hello("p"))
    (transport,) = rig.transports[prefill].made
    transport.gate.clear()
    rig.rank(RoleName.DECODE, hello("d"))
    rig.until(lambda: transport.connects == 1)
    rig.step(HELLO_S)
    rig.rank(RoleName.DECODE, hello("d", 1))
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


def test_a_prefill_rank_that_came_back_unnoticed_is_found_by_the_refresh(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same address, as may happen over TCP, and the registry has not said so."""
    monkeypatch.setattr(answering, "socket_name", lambda kind, group, rank, incarnation: f"{kind}-{group}-{rank}")
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
    assert open_to(prefill, "d") == hello("d", incarnation=2)


def test_the_first_hello_of_who_has_a_successor_changes_nothing(rig: Rig) -> None:
    """It has slept since before this prefill rank was there, so its incarnation is as unknown as any new one."""
    prefill, successor = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d", incarnation=2))
    successor.begin(Epoch(5))
    rig.introduce()
    rig.until(lambda: open_to(prefill, "d") is not None)
    ghost = rig.sockets.connect(zmq.DEALER, rig.members[prefill].peers, identity(hello("d")))
    rig.until(lambda: post(ghost, encode(msgspec.structs.replace(hello("d"), epoch=Epoch(4), session=7))))
    rig.until(lambda: prefill.counts["stale"] == 1)
    assert rig.links[prefill] == [PeerOpened(msgspec.structs.replace(hello("d", incarnation=2), epoch=Epoch(5)))]


def test_strangers_are_counted_and_not_heard(rig: Rig) -> None:
    """No Hello; a Hello that is not one's own; somebody else's grant; garbage."""
    prefill, _ = pair(rig)
    stranger = rig.sockets.connect(zmq.DEALER, rig.members[prefill].peers, b"stranger")
    rig.until(lambda: post(stranger, encode(Numbered(1, 1, Grant("d", ROOM, RankId(0), 0, ())))))
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


def test_a_rank_that_was_forgotten_is_told_and_begins_anew(rig: Rig) -> None:
    prefill, decode = pair(rig)
    prefill.on_members([])
    rig.step(MISSING_S)
    prefill.on_members([])
    rig.until_heard(prefill, PeerLost("d", RankId(0)), PeerOpened(hello("d")))
    rig.until_heard(decode, PeerLost("p", RankId(0)), PeerOpened(hello("p")))


def test_who_has_not_heard_that_it_was_forgotten_finds_out_by_the_refresh(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair(rig)
    prefill.on_members([])
    rig.step(MISSING_S)
    with monkeypatch.context() as patch:
        patch.setattr(answering, "post", lambda *_: False)
        prefill.on_members([])
    rig.pump()
    assert rig.links[decode] == []
    rig.step(REFRESH_S)
    rig.until_heard(decode, PeerLost("p", RankId(0)), PeerOpened(hello("p")))


def test_words_in_a_session_that_is_not_known_are_answered_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forgotten, and has not been told."""
    prefill, decode = pair(rig)
    prefill.on_members([])
    rig.step(MISSING_S)
    with monkeypatch.context() as patch:
        patch.setattr(answering, "post", lambda *_: False)
        prefill.on_members([])
    decode.send("p", RankId(0), Cancelled("d", ROOM, Reason.DEADLINE))
    rig.until_heard(decode, PeerLost("p", RankId(0)), PeerOpened(hello("p")))
    assert rig.links[prefill] == [PeerLost("d", RankId(0)), PeerOpened(hello("d"))], "and not heard"


def test_a_lost_answer_is_given_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d"))
    with monkeypatch.context() as patch:
        patch.setattr(answering, "post", lambda *_: False)
        rig.until(lambda: rig.links[prefill] == [PeerOpened(hello("d"))])
    rig.step(HELLO_S)
    rig.until_heard(decode, PeerOpened(hello("p")))
    assert rig.links[prefill] == [PeerOpened(hello("d"))]


# what is said may be lost


@pytest.mark.parametrize("side", [answering, calling])
def test_what_was_lost_is_said_again_in_order(rig: Rig, monkeypatch: pytest.MonkeyPatch, side: ModuleType) -> None:
    prefill, decode = pair(rig)
    from_prefill = side is answering
    speaker, to, hearer = (prefill, "d", decode) if from_prefill else (decode, "p", prefill)
    words = [
        Cancelled("p" if from_prefill else "d", Room(RequestId(number), 0), Reason.DEADLINE) for number in range(4)
    ]
    speaker.send(to, RankId(0), words[0])
    with monkeypatch.context() as patch:
        patch.setattr(side, "post", lambda *_: True)  # it seems to have left
        for word in words[1:3]:
            speaker.send(to, RankId(0), word)
    speaker.send(to, RankId(0), words[3])
    rig.until(lambda: rig.links[hearer] == words[:1])
    assert speaker.unheard >= 3
    rig.step(RESEND_S)
    rig.step(RESEND_S)
    rig.until(lambda: rig.links[hearer] == words)
    rig.until(lambda: speaker.unheard == 0)


@pytest.mark.parametrize("role", [RoleName.PREFILL, RoleName.DECODE])
def test_a_peer_that_hears_nothing_for_too_long_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, role: RoleName
) -> None:
    monkeypatch.setattr(reliable, "MAX_UNHEARD", 2)
    prefill, decode = pair(rig)
    speaker, other, to = (prefill, decode, "d") if role is RoleName.PREFILL else (decode, prefill, "p")
    for _ in range(3):
        speaker.send(to, RankId(0), Cancelled("p" if to == "d" else "d", ROOM, Reason.DEADLINE))
    rig.until(lambda: rig.links[speaker] == [PeerLost(to, RankId(0)), PeerOpened(hello(to))])
    rig.until(lambda: PeerLost("p" if to == "d" else "d", RankId(0)) in rig.links[other])
