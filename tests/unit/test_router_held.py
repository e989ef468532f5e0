"""Which peer groups an operator may have cut off: those that serve, and those that pages are still held for."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from router import held
from router.errors import ApiError
from router.membership import Watched
from tandem.core.config import Group, RoleName
from tandem.runtime.history import HeldPages, HeldRoom

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
