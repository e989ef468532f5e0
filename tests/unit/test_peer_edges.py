"""Peer links and their transports: one per group, proved by a known answer, given up when it fails, and fenced."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_rig import Rig, hello, open_to, pair

from kvtransfer import openings
from kvtransfer.breaker import BACK_OFF_S, MAX_FAILED
from kvtransfer.fences import COMPLAIN_S
from kvtransfer.handshake import HELLO_S, REFRESH_S
from kvtransfer.peer_link import PeerLink
from tandem.core.config import RoleName
from tandem.core.events import Fenced, PeerLost, PeerOpened, Written
from tandem.core.ids import RankId
from tandem.core.messages import Hello

FIRST = RankId(0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    tmp_path.chmod(0o700)
    made = Rig(str(tmp_path))
    yield made
    for transports in made.transports.values():
        for transport in transports.made:
            transport.may_close.set()
            transport.gate.set()
    made.close()


def last_hello(rig: Rig, group: str) -> Hello:
    """The last one of the group with which somebody was opened."""
    return [said for said in rig.greetings if said.group == group][-1]


# one transport per group


def test_each_group_is_told_an_endpoint_of_its_own(rig: Rig) -> None:
    rig.rank(RoleName.DECODE, hello("d"))
    prefills = [rig.rank(RoleName.PREFILL, hello(group, rank)) for group in ("p", "q") for rank in range(2)]
    rig.until(lambda: all(rig.links[prefill] for prefill in prefills))
    told = {link: link.hello("d", FIRST) for link in prefills}
    endpoints = [said.endpoint for said in told.values() if said is not None]
    assert sorted(endpoints) == ["d0-0", "d0-0", "d0-1", "d0-1"], "ranks of one group share it"
    probes = [said.probe for said in told.values() if said is not None]
    assert len({*probes}) == 4, "each rank has a place of its own for the known answer"


def test_who_waits_for_its_transport_greets_nobody_and_then_does(rig: Rig) -> None:
    decode = rig.rank(RoleName.DECODE, hello("d"))
    transports = rig.transports[decode]
    first = rig.rank(RoleName.PREFILL, hello("p"))
    rig.until(lambda: rig.links[first] == [PeerOpened(hello("d"))])
    transports.broken = True
    second = rig.rank(RoleName.PREFILL, hello("q"))
    rig.until(lambda: decode.refusals().get(("q", FIRST)) == "no transport today")
    assert rig.links[second] == []
    assert not decode.greeting, "it need not hurry"
    transports.broken = False
    rig.step(openings.RETRY_S)
    rig.until_heard(second, PeerOpened(hello("d")))
    assert decode.refusals() == {}


# the known answer


@pytest.mark.parametrize("written", [Written.FAILED_SETTLED, Written.FAILED_UNSETTLED])
def test_who_cannot_be_written_the_known_answer_is_refused(rig: Rig, written: Written) -> None:
    prefill, decode = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d"))
    rig.transports[prefill].made[0].written = written
    rig.until(lambda: f"the known answer ended {written.value}" in decode.refusals().get(("p", FIRST), ""))
    assert rig.links[prefill] == rig.links[decode] == []


def test_a_rank_whose_known_answer_is_not_there_is_not_opened(rig: Rig) -> None:
    """The write said that it went well."""
    prefill, decode = rig.rank(RoleName.PREFILL, hello("p")), rig.rank(RoleName.DECODE, hello("d"))
    transport = rig.transports[prefill].made[0]
    transport.spoils = True
    rig.until(lambda: "known answer that p/0 says" in decode.refusals().get(("p", FIRST), ""))
    assert rig.links[decode] == []
    transport.spoils = False
    rig.step(REFRESH_S)
    rig.until_heard(decode, PeerOpened(hello("p")))
    assert rig.links[prefill] == [PeerOpened(hello("d")), PeerLost("d", FIRST), PeerOpened(hello("d"))]


# writes that fail


def fail(prefill: PeerLink, times: int = MAX_FAILED) -> None:
    peer = prefill.hello("d", FIRST)
    assert peer is not None
    for _ in range(times):
        prefill.wrote(peer, Written.FAILED_UNSETTLED)


def test_an_edge_whose_writes_fail_in_a_row_is_closed_and_opened_again_after_its_back_off(rig: Rig) -> None:
    prefill, decode = pair(rig)
    fail(prefill)
    rig.until_heard(prefill, PeerLost("d", FIRST))
    rig.until_heard(decode, PeerLost("p", FIRST))
    for refusals in (prefill.refusals(), decode.refusals()):
        (why,) = refusals.values()
        assert f"{MAX_FAILED} writes in a row failed" in why
        assert f"tried again in {BACK_OFF_S:.0f} s" in why
    rig.step(REFRESH_S)
    rig.until_heard(prefill, PeerOpened(hello("d")))
    rig.until_heard(decode, PeerOpened(hello("p")))
    assert prefill.refusals() == decode.refusals() == {}


def test_an_edge_that_keeps_failing_is_left_alone_ever_longer(rig: Rig) -> None:
    prefill, decode = pair(rig)
    for times in (1, 2, 3):
        fail(prefill)
        rig.until(lambda times=times: decode.counts["refused"] == times)
        rig.step(REFRESH_S)
        rig.until(lambda: decode.hello("p", FIRST) is not None)
    fail(prefill)
    rig.until(lambda: decode.counts["refused"] == 4)
    rig.step(REFRESH_S)
    rig.until(lambda: decode.counts["refused"] == 5)
    assert prefill.hello("d", FIRST) is None, "8 s are not over"
    rig.step(REFRESH_S)
    rig.until(lambda: decode.hello("p", FIRST) is not None)
    assert decode.refusals() == prefill.refusals() == {}


def test_a_write_that_ends_well_makes_up_for_those_before(rig: Rig) -> None:
    prefill, _ = pair(rig)
    peer = prefill.hello("d", FIRST)
    assert peer is not None
    fail(prefill, MAX_FAILED - 1)
    prefill.wrote(peer, Written.OK)
    fail(prefill, MAX_FAILED - 1)
    rig.pump()
    assert open_to(prefill, "d") == hello("d")


def test_a_new_instance_is_not_blamed_for_the_one_before(rig: Rig) -> None:
    prefill, decode = pair(rig)
    before = prefill.hello("d", FIRST)
    assert before is not None
    fail(prefill)
    rig.until(lambda: rig.links[prefill] == [PeerLost("d", FIRST)])
    rig.gone(decode)
    rig.rank(RoleName.DECODE, hello("d", incarnation=2))
    rig.until(lambda: rig.links[prefill][1:] == [PeerOpened(hello("d", incarnation=2))])
    for _ in range(MAX_FAILED):
        prefill.wrote(before, Written.FAILED_UNSETTLED)
    rig.pump()
    assert open_to(prefill, "d") == hello("d", incarnation=2), "nor for writes that end late"


# fences


def test_a_fence_on_the_decode_rank_loses_ends_and_greets_anew(rig: Rig) -> None:
    prefill, decode = pair(rig)
    before = last_hello(rig, "d")
    decode.fence("p")
    rig.until_heard(decode, PeerLost("p", FIRST), Fenced("p"), PeerOpened(hello("p")))
    rig.until_heard(prefill, PeerLost("d", FIRST), PeerOpened(hello("d")))
    after = last_hello(rig, "d")
    assert (before.fence, after.fence) == (0, 1)
    assert [transport.closed for transport in rig.transports[decode].made] == [True, False]
    assert (before.endpoint, after.endpoint) == ("d0-0", "d0-1")


def test_a_fence_on_the_prefill_rank_loses_ends_and_is_greeted_anew(rig: Rig) -> None:
    prefill, decode = pair(rig)
    prefill.fence("d")
    rig.until_heard(prefill, PeerLost("d", FIRST), Fenced("d"), PeerOpened(hello("d")))
    rig.until_heard(decode, PeerLost("p", FIRST), PeerOpened(hello("p")))
    assert [transport.closed for transport in rig.transports[prefill].made] == [True, False]
    assert last_hello(rig, "p").fence == 1
    assert last_hello(rig, "d").fence == 0, "what lands there was not fenced"


@pytest.mark.parametrize("role", [RoleName.PREFILL, RoleName.DECODE])
def test_nobody_of_the_group_is_opened_before_the_fence_is_done(rig: Rig, role: RoleName) -> None:
    prefill, decode = pair(rig)
    fencing, group = (prefill, "d") if role is RoleName.PREFILL else (decode, "p")
    (transport,) = rig.transports[fencing].made
    transport.may_close.clear()
    fencing.fence(group)
    assert fencing.fencing() == [group]
    rig.until(lambda: rig.links[fencing] == [PeerLost(group, FIRST)])
    for _ in range(3):
        rig.step(REFRESH_S)
        rig.pump()
    assert rig.links[fencing] == [PeerLost(group, FIRST)]
    transport.may_close.set()
    rig.until(lambda: rig.step(HELLO_S) or rig.links[fencing][1:] == [Fenced(group), PeerOpened(hello(group))])
    assert fencing.fencing() == []


def test_a_fence_of_one_group_is_no_business_of_another(rig: Rig) -> None:
    decode = rig.rank(RoleName.DECODE, hello("d"))
    prefills = [rig.rank(RoleName.PREFILL, hello(group)) for group in ("p", "q")]
    rig.until(lambda: len(rig.links[decode]) == 2)
    rig.links[decode].clear()
    (stuck,) = [made for made in rig.transports[decode].made if made.endpoint == last_hello_to(prefills[0]).endpoint]
    stuck.may_close.clear()
    decode.fence("p")
    for _ in range(3):
        rig.step(REFRESH_S)
        rig.pump()
    assert rig.links[decode] == [PeerLost("p", FIRST)]
    assert open_to(decode, "q") == hello("q")
    assert open_to(prefills[1], "d") == hello("d")


def last_hello_to(prefill: PeerLink) -> Hello:
    said = prefill.hello("d", FIRST)
    assert said is not None
    return said


def test_a_fence_that_is_asked_for_during_another_follows_it(rig: Rig) -> None:
    """However often it is asked for: all that wait for a stuck one wait for one thread."""
    _, decode = pair(rig)
    (transport,) = rig.transports[decode].made
    transport.may_close.clear()
    before = threading.enumerate()
    for _ in range(3):
        for _ in range(2):
            decode.fence("p")
        rig.pump()
        new = [thread for thread in threading.enumerate() if thread.name == "fence p" and thread not in before]
        assert len(new) == 1
    transport.may_close.set()
    rig.until_heard(decode, PeerLost("p", FIRST), Fenced("p"), Fenced("p"), PeerOpened(hello("p")))
    assert last_hello(rig, "d").fence == 2


def test_a_group_that_was_never_met_is_fenced_at_once(rig: Rig) -> None:
    _, decode = pair(rig)
    decode.fence("x")
    rig.until_heard(decode, Fenced("x"))


def test_the_log_tells_when_a_fence_begins_and_when_it_is_done(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    _, decode = pair(rig)
    with caplog.at_level(logging.INFO):
        decode.fence("p")
        decode.fence("p")
        assert caplog.text.count("p is being fenced off") == 1, "however many rooms wait for it"
        assert "p is fenced off" not in caplog.text
        rig.until_heard(decode, PeerLost("p", FIRST), Fenced("p"), PeerOpened(hello("p")))
    assert caplog.text.count("p is fenced off") == 1


def test_a_fence_that_fails_is_logged_and_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvtransfer.fences.RETRY_S", 0.0)
    prefill = rig.rank(RoleName.PREFILL, hello("p"))
    decode = rig.rank(RoleName.DECODE, hello("d"))
    rig.until(lambda: len(rig.links[decode]) == 1)
    rig.links[decode].clear()
    (transport,) = rig.transports[decode].made
    close, failures = transport.close, iter([TimeoutError("a call is stuck"), OSError("no")])

    def failing() -> None:
        for failure in failures:
            raise failure
        close()

    transport.close = failing  # type: ignore[method-assign]
    decode.fence("p")
    rig.until_heard(decode, PeerLost("p", FIRST), Fenced("p"), PeerOpened(hello("p")))
    assert transport.closed
    assert caplog.text.count("the fence of p failed, it is tried again") == 2
    assert open_to(prefill, "d") == hello("d")


def test_a_fence_that_hangs_is_complained_of_and_never_taken_as_done(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    _, decode = pair(rig)
    (transport,) = rig.transports[decode].made
    transport.may_close.clear()
    rig.step(COMPLAIN_S)
    decode.fence("p")
    rig.until_heard(decode, PeerLost("p", FIRST))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            rig.step(COMPLAIN_S)
            rig.pump()
    assert caplog.text.count("still waiting for the fence of p") == 2
    assert rig.links[decode] == []
    assert decode.fencing() == ["p"]
