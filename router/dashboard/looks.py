"""Asks the ranks what they are doing: so many of them at once, in turn where there are more."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from router.dashboard.book import Book
from router.membership import Watched
from router.pieces import Clock
from router.ranks import Heard, RankState, ask_all, check_name, read
from tandem.core.commands import rank_name
from tandem.core.ids import RankId
from tandem.core.members import Member
from tandem.runtime.history import Outlines

AT_ONCE = 64
"""Ranks in one look: a look every second must not be what a large cluster's router is busy with."""
PAUSE_S = 5.0
"""Who has not looked for so long does not know when what is new has happened."""
ANSWER_S = 1.0
"""A rank must answer within this time to be heard. No timer scale: the page calls a snapshot of 3 s ago stale."""


@dataclass(frozen=True)
class Look:
    """What one rank has said last, or why it said nothing."""

    at: float
    state: RankState | None
    why: str = ""


class Looks:
    """Keeps what each rank has said last."""

    def __init__(self, book: Book) -> None:
        self.by_rank: dict[str, Look] = {}
        self._book = book
        self._since_us: dict[str, int] = {}  # by the rank's own clock
        self._next = 0
        self._looked: float | None = None
        self._dated: set[str] = set()  # ranks that were asked since the last pause

    async def look(self, groups: Sequence[Watched]) -> None:
        """Ask those whose turn it is."""
        members = {
            rank_name(watched.group, rank): watched.ranks[rank]
            for watched in groups
            for rank in map(RankId, range(watched.group.size))
            if rank in watched.ranks
        }
        for name in [name for name in self.by_rank if name not in members]:
            del self.by_rank[name]
            self._since_us.pop(name, None)
        turn = self._turn(members)
        states, timelines = await asyncio.gather(self._ask_states(turn), self._ask_timelines(turn))
        now = asyncio.get_running_loop().time()
        if self._looked is None or now - self._looked > PAUSE_S:
            self._dated.clear()
        self._looked = now
        self.by_rank.update({name: Look(now, *said) for name, said in states.items()})
        for name, (outlines, heard) in timelines.items():
            middle_us = (heard.asked_us + heard.heard_us) // 2
            clock = Clock(outlines.now_us - middle_us, (heard.heard_us - heard.asked_us + 1) // 2)
            self._since_us[name] = outlines.now_us
            self._book.on_outlines(outlines, clock, now, first=name not in self._dated)
            self._dated.add(name)
        self._book.settle(groups)

    def _turn(self, members: dict[str, Member]) -> dict[str, Member]:
        """All, or the next ones after those of the last look."""
        for name, member in members.items():
            if self._book.on_incarnation(name, member.incarnation):
                self._since_us.pop(name, None)
                self._dated.discard(name)
        names = list(members)
        if len(names) <= AT_ONCE:
            return members
        start = self._next % len(names)
        self._next = start + AT_ONCE
        chosen = (names[start:] + names[:start])[:AT_ONCE]
        return {name: members[name] for name in chosen}

    async def _ask_states(self, members: dict[str, Member]) -> dict[str, tuple[RankState | None, str]]:
        addresses = {name: member.http for name, member in members.items()}
        heard, silent = await ask_all(addresses, "/state", ANSWER_S)
        said: dict[str, tuple[RankState | None, str]] = {name: (None, why) for name, why in silent.items()}
        for name, answer in heard.items():
            try:
                state = read(answer, RankState)
                check_name(f"{state.group}.{state.rank}", name)
            except ValueError as error:
                said[name] = None, str(error)
            else:
                said[name] = state, ""
        return said

    async def _ask_timelines(self, members: dict[str, Member]) -> dict[str, tuple[Outlines, Heard]]:
        """Of who has one: a rank that forms its ring has none. Why another one does not, its state says."""
        since: dict[int, dict[str, str]] = {}
        for name, member in members.items():
            since.setdefault(self._since_us.get(name, 0), {})[name] = member.http
        asked = (ask_all(those, f"/timelines?since_us={at_us}", ANSWER_S) for at_us, those in since.items())
        told = {}
        for heard, _ in await asyncio.gather(*asked):
            for name, answer in heard.items():
                try:
                    outlines = read(answer, Outlines)
                    check_name(outlines.name, name)
                except ValueError:
                    continue
                told[name] = outlines, answer
        return told
