"""Pages that groups hold for each other: what a router makes of the answers of ranks, and who may be cut off."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from router import held
from router.errors import ApiError
from router.held import held_of
from router.membership import Watched
from router.ranks import Heard
from router.transfers import overview
from tandem.core.config import Group, RoleName
from tandem.runtime.history import HeldPages, HeldRoom

HELD = HeldRoom("d0", "00000000000000ab.1", "p0", 5, 1200)


def heard(body: bytes, status: int = 200) -> Heard:
    return Heard(status, body, 0, 1)


def test_what_a_rank_holds_is_read_out_of_its_state():
    state = {"ready": True, "tick": 7, "held": [HELD]}
    assert held_of(heard(msgspec.json.encode(state))) == [HELD]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (heard(b'{"ready": false, "waiting_for": "its engine", "group": "d0"}'), "not ready: waiting for its engine"),
        (heard(b'{"error": "no"}', 503), "status 503"),
        (heard(b"<html>"), "cannot be read"),
        (heard(b'{"ready": true, "held": [{"group": "d0"}]}'), "cannot be read"),
    ],
)
def test_who_tells_of_no_pages_is_named_with_the_reason(answer: Heard, why: str):
    with pytest.raises(ValueError, match=why):
        held_of(answer)


# who may be cut off

GROUPS = [
    Watched(Group(RoleName.PREFILL, "p0", (1,))),
    Watched(Group(RoleName.DECODE, "d0", (1,))),
    Watched(Group(RoleName.DECODE, "d1", (1,))),
    Watched(Group(RoleName.COLOCATED, "c0", (1,))),
]
ROOM = msgspec.convert({"group": "d0", "room": "00ab.1", "peer": "p7", "pages": 3, "age_ms": 5}, HeldRoom)


def checked(monkeypatch: pytest.MonkeyPatch, group: str, peer: str, known: HeldPages) -> None:
    async def told(groups: Sequence[Watched], scale: float) -> HeldPages:
        assert [each.group.name for each in groups] == [group], "nobody else is asked"
        return known

    monkeypatch.setattr(held, "held_pages", told)
    asyncio.run(held.check_peer(GROUPS, group, peer, 1.0))


@pytest.mark.parametrize(("group", "peer"), [("d0", "p0"), ("p0", "d1")])
def test_a_group_of_the_other_role_is_a_peer(monkeypatch: pytest.MonkeyPatch, group: str, peer: str):
    checked(monkeypatch, group, peer, HeldPages([], {}))


@pytest.mark.parametrize(("group", "peer"), [("d0", "p9"), ("d0", "d0"), ("d0", "d1"), ("d0", "c0"), ("c0", "p0")])
def test_any_other_name_is_refused(monkeypatch: pytest.MonkeyPatch, group: str, peer: str):
    with pytest.raises(ApiError) as refused:
        checked(monkeypatch, group, peer, HeldPages([ROOM], {}))
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "unknown_peer", "peer")
    assert f"{group} has no peer group {peer!r}" in refused.value.message


def test_a_peer_that_is_gone_may_be_cut_off_while_pages_are_held_for_it(monkeypatch: pytest.MonkeyPatch):
    checked(monkeypatch, "d0", "p7", HeldPages([ROOM], {}))


def test_who_cannot_be_asked_is_believed(monkeypatch: pytest.MonkeyPatch):
    checked(monkeypatch, "d0", "p9", HeldPages([], {"d0": "it did not answer within 1 s"}))


def test_who_is_not_registered_is_named():
    known = asyncio.run(held.held_pages(GROUPS[:1], 1.0))
    assert known == HeldPages([], {"p0": "its rank 0 is not registered"})
    assert asyncio.run(overview(GROUPS[:1], 1.0, lambda request_id: "")).silent == {"p0.0": "it is not registered"}
