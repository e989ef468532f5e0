"""Whom the dashboard asks: everybody in turn where there are many, and only for what is new."""

import asyncio
import time
from collections.abc import Mapping

import msgspec
import pytest
from desk import head

from router.dashboard import looks as module
from router.dashboard.book import Book
from router.dashboard.looks import AT_ONCE, Looks
from router.membership import Watched
from router.ranks import Heard
from tandem.core.config import Group, RoleName
from tandem.core.ids import RankId
from tandem.runtime.history import Outline, Outlines, What


class Ranks:
    """Answers in the place of all ranks, whose addresses are their names, and counts who is asked for what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.clock_us = 1_000
        self.wrote = 0
        self.away: set[str] = set()

    async def ask_all(
        self, addresses: Mapping[str, str], path: str, timeout_s: float
    ) -> tuple[dict[str, Heard], dict[str, str]]:
        heard = {}
        for name, address in addresses.items():
            self.asked.append((address, path))
            if name not in self.away:
                heard[name] = self._answer(address, path)
        return heard, {name: "it did not answer" for name in addresses if name in self.away}

    def _answer(self, name: str, path: str) -> Heard:
        group, _, rank = name.partition(".")
        now_us = time.time_ns() // 1000
        if path == "/state":
            state = {"group": group, "rank": int(rank), "ready": True, "tick": 7}
            return Heard(200, msgspec.json.encode(state), now_us, now_us)
        rooms = [Outline("a", 1, "d0", 8, marks={What.SUBMITTED: now_us}, bytes=self.wrote)]
        told = Outlines(group, int(rank), "prefill", self.clock_us, rooms)
        return Heard(200, msgspec.json.encode(told), now_us, now_us)

    def taken(self) -> list[tuple[str, str]]:
        """And forgotten."""
        asked, self.asked = self.asked, []
        return asked


def ring(size: int, incarnation: int = 1) -> Watched:
    first = head(RoleName.PREFILL, "p0", incarnation)
    ranks = {RankId(rank): msgspec.structs.replace(first, rank=RankId(rank), http=f"p0.{rank}") for rank in range(size)}
    return Watched(Group(RoleName.PREFILL, "p0", (1,) * size), ranks)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    double = Ranks()
    monkeypatch.setattr(module, "ask_all", double.ask_all)
    return double


def look(looks: Looks, watched: Watched) -> None:
    asyncio.run(looks.look([watched]))


def test_a_rank_is_asked_for_what_is_new_since_it_was_asked_last_by_its_own_clock(ranks: Ranks):
    looks = Looks(Book())
    look(looks, ring(1))
    look(looks, ring(1))
    assert [path for _, path in ranks.taken()] == [
        "/state",
        "/timelines?since_us=0",
        "/state",
        "/timelines?since_us=1000",
    ]
    look(looks, ring(1, incarnation=2))
    assert "/timelines?since_us=0" in [path for _, path in ranks.taken()], "it knows nothing of what it was before"


def test_many_ranks_are_asked_in_turn(ranks: Ranks):
    looks, watched = Looks(Book()), ring(2 * AT_ONCE + 20)
    seen: set[str] = set()
    for number in range(3):
        look(looks, watched)
        asked = {name for name, path in ranks.taken() if path == "/state"}
        assert len(asked) == AT_ONCE
        assert not asked & seen or number == 2, "nobody twice before everybody once"
        seen |= asked
    assert len(seen) == watched.group.size
    assert looks.by_rank.keys() == seen


def test_what_a_rank_said_before_it_fell_silent_is_not_shown_any_more(ranks: Ranks):
    looks = Looks(Book())
    look(looks, ring(1))
    assert looks.by_rank["p0.0"].state is not None
    ranks.away.add("p0.0")
    look(looks, ring(1))
    assert (looks.by_rank["p0.0"].state, looks.by_rank["p0.0"].why) == (None, "it did not answer")
    look(looks, ring(0))
    assert looks.by_rank == {}


def test_another_rank_at_the_address_is_named_and_not_shown(ranks: Ranks):
    """127.0.0.1 means another host there than here."""
    looks, watched = Looks(Book()), ring(1)
    watched.ranks[RankId(0)] = msgspec.structs.replace(watched.ranks[RankId(0)], http="p7.0")
    look(looks, watched)
    assert looks.by_rank["p0.0"].state is None
    assert "p7.0 answers at its address" in looks.by_rank["p0.0"].why


def test_what_was_written_while_nobody_looked_is_no_rate(ranks: Ranks, monkeypatch: pytest.MonkeyPatch):
    book = Book()
    looks, both = Looks(book), [ring(1), Watched(Group(RoleName.DECODE, "d0", (1,)))]

    async def run() -> None:
        now = asyncio.get_running_loop().time()
        for wrote in (1_000, 5_000):
            ranks.wrote = wrote
            await looks.look(both)
        assert book.rates(now) == {("p0", "d0"): 4_000.0}
        monkeypatch.setattr(module, "PAUSE_S", -1.0)
        ranks.wrote = 9_000
        await looks.look(both)
        assert book.rates(now) == {("p0", "d0"): 4_000.0}, "nobody knows when the rest was"

    asyncio.run(run())
