"""The groups as the dashboard shows them: lag, causes, breakers of edges, pages that are held for too long."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from desk import head

from router.breakers import Breakers
from router.dashboard.book import Book
from router.dashboard.looks import Look, RankState
from router.dashboard.topology import NOT_ASKED, NOT_REGISTERED, edges_now, groups_now, held_now
from router.dispatch import Dispatch
from router.membership import Membership, Watched
from router.ranks import Heard, read
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import Epoch, RankId
from tandem.core.members import Member
from tandem.runtime.history import HeldRoom

PAGES = {"total": 10, "free": 4, "owned": 3, "cached": 2, "quarantined": 1}


def ring(role: RoleName, name: str, size: int) -> list[Member]:
    """Members of a group whose ring has formed."""
    group = Group(role, name, (2,) * size)
    first = msgspec.structs.replace(head(role, name), group=group, epoch=Epoch(5), http="h:1", intake="there")
    return [msgspec.structs.replace(first, rank=RankId(rank), last_end="it was tired") for rank in range(size)]


def dispatch(*members: Member) -> Dispatch:
    membership = Membership("m")
    membership.on_members(members, 0.0)
    requests = SimpleNamespace(on_group=lambda name: 3)
    return cast(Dispatch, SimpleNamespace(membership=membership, requests=requests, breakers=Breakers(2, 30.0)))


def test_the_lag_of_a_rank_is_against_the_first_of_its_ring():
    looks = {f"p0.{rank}": Look(8.0, RankState(True, tick=tick, pages=PAGES)) for rank, tick in enumerate((40, 37))}
    (group,) = groups_now(dispatch(*ring(RoleName.PREFILL, "p0", 2)), looks, 10.0)
    assert [(rank.tick, rank.lag, rank.ready) for rank in group.ranks] == [(40, 0, True), (37, 3, True)]
    assert [rank.asked_s_ago for rank in group.ranks] == [2.0, 2.0]
    assert (group.layers, group.open) == (4, 3)
    assert group.pages is not None
    assert msgspec.to_builtins(group.pages) == PAGES


def test_every_rank_that_is_not_ready_has_a_cause():
    members = ring(RoleName.DECODE, "d0", 4)[:3]
    looks = {
        "d0.0": Look(0.0, RankState(False, waiting_for="its engine")),
        "d0.1": Look(0.0, None, "it did not answer within 1 s"),
    }
    (group,) = groups_now(dispatch(*members), looks, 0.0)
    assert [rank.cause for rank in group.ranks] == [
        "it waits for its engine",
        "it did not answer within 1 s",
        NOT_ASKED,
        NOT_REGISTERED,
    ]
    assert (group.state, group.cause) == ("missing", "it has ranks missing")
    assert group.ranks[0].last_end == "it was tired"
    assert group.pages is None, "nobody who is ready has told"


def test_an_edge_is_told_when_a_breaker_of_it_or_of_its_groups_has_seen_failures():
    router = dispatch(
        *ring(RoleName.PREFILL, "p0", 1), *ring(RoleName.DECODE, "d0", 1), *ring(RoleName.DECODE, "d1", 1)
    )
    assert edges_now(router, Book(), 0.0) == []
    router.breakers.failed(("p0", "d1"), 0.0)
    (edge,) = edges_now(router, Book(), 0.0)
    assert (edge.prefill, edge.decode, edge.breaker, edge.breaker_failures) == ("p0", "d1", "closed", 1)
    router.breakers.failed(("d1",), 0.0)
    router.breakers.failed(("d1",), 0.0)
    (edge,) = edges_now(router, Book(), 0.0)
    assert (edge.breaker, edge.breaker_failures) == ("open", 2)


def test_pages_are_stranded_when_they_are_held_for_longer_than_the_quiesce_time():
    first = msgspec.structs.replace(ring(RoleName.DECODE, "d0", 1)[0], limits=Limits(quiesce_ms=500))
    watched = Watched(first.group, {RankId(0): first})
    rooms = [HeldRoom("d0", f"{age:016x}.1", "p0", 2, age) for age in (400, 900)]
    held = held_now([watched], {"d0.0": Look(0.0, RankState(True, held=rooms))})
    assert [(room.age_ms, room.stranded) for room in held] == [(900, True), (400, False)]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (503, b'{"error": "the tick loop did not answer"}', "status 503: the tick loop did not answer"),
        (500, b"<html>", "status 500$"),
        (200, b"<html>", "cannot be read"),
    ],
)
def test_what_a_rank_will_not_tell_has_a_reason(status: int, body: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        read(Heard(status, body, 0, 1), RankState)
