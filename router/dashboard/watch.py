"""Takes one snapshot after the other, for all who look at the page together."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence

from router.dashboard import figures
from router.dashboard.book import Book, Told
from router.dashboard.looks import PAUSE_S, Looks
from router.dashboard.topology import edges_now, groups_now, held_now
from router.dashboard.words import MOST_HELD, MOST_LIVE, MOST_LOSSES, LossNow, RouterNow, Snapshot
from router.errors import ApiError
from router.health import version
from router.membership import State, Watched
from router.service import Service
from router.transfers import detail, say_why
from tandem.core.config import RoleName
from tandem.runtime.history import Landing, Summary, Transfer

MOST_ASKED = 8
"""Transfers whose layers are asked for one by one, each second."""
RECENT_S = 300.0
"""Latencies are of attempts that anything happened to since: what was before says nothing of now."""
LINGERS_S = 10.0
"""For so long a transfer that is over stays on the page, as most are over before anybody could see them."""


class Watch:
    """One router's. Only `snapshot` asks anybody, and it is called only while somebody looks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._book = Book()
        self._looks = Looks(self._book)
        self._admitted: deque[tuple[float, int]] = deque(maxlen=10)

    async def snapshot(self) -> Snapshot:
        """Everything on the page, as of now."""
        service, loop = self._service, asyncio.get_running_loop()
        groups = service.membership.groups()
        await self._looks.look(groups)
        now, now_us = loop.time(), time.time_ns() // 1000
        shown, live_count = self._live(groups, now)
        progress = await self._progress(groups, [about for about, told in shown if not told.over])
        every, recalled = list(self._book.all()), service.recalled
        say_why((about for about, _ in every), recalled.failure)
        recent = [(about, told) for about, told in every if now_us - told.last_us < 1e6 * RECENT_S]
        held = held_now(groups, self._looks.by_rank)
        return Snapshot(
            at_us=now_us,
            model=service.model.name,
            version=version(),
            router=self._router(now),
            groups=groups_now(service.dispatch, self._looks.by_rank, now),
            edges=edges_now(service.dispatch, self._book, now),
            live=[figures.on_its_way(about, told, now_us, progress) for about, told in shown],
            live_count=live_count,
            phases=figures.spreads(recent),
            first_tokens=figures.first_tokens(recent, recalled.waited_ms),
            slow=figures.slowest(every, recalled, now_us),
            held=held[:MOST_HELD],
            held_pages=sum(room.pages for room in held),
            losses=[
                LossNow(round(now - loss.at, 1), loss.group, loss.cause)
                for loss in list(service.dispatch.losses)[: -MOST_LOSSES - 1 : -1]
            ],
            remembered=len(every),
        )

    def _live(self, groups: Sequence[Watched], now: float) -> tuple[list[tuple[Summary, Told]], int]:
        """Those on their way, oldest first, then the newest of those that are over; and how many are on their way."""
        state = self._service.membership.state
        lost = [watched.group.name for watched in groups if state(watched) is State.LOST]
        live = self._book.live(lost)
        over = [
            (about, told)
            for about, told in self._book.all()
            if told.edge is not None and told.over and now - told.heard < LINGERS_S
        ]
        return [*live[:MOST_LIVE], *over[::-1]][:MOST_LIVE], len(live)

    async def _progress(self, groups: Sequence[Watched], live: Sequence[Summary]) -> Mapping[str, list[float]]:
        """How much of the prompt has landed of each layer."""
        asked = live[:MOST_ASKED]
        told = await asyncio.gather(*(self._detail(groups, about) for about in asked))
        return {
            f"{about.id}.{about.attempt}": progress_of(transfer, about)
            for about, transfer in zip(asked, told, strict=True)
            if transfer is not None
        }

    async def _detail(self, groups: Sequence[Watched], about: Summary) -> Transfer | None:
        """As its decode group tells, where KV lands; None when that has forgotten it since."""
        receiver = about.groups[RoleName.DECODE.value]
        concerned = [watched for watched in groups if watched.group.name == receiver]
        try:
            return await detail(concerned, f"{about.id}.{about.attempt}", 1.0)
        except ApiError:
            return None

    def _router(self, now: float) -> RouterNow:
        service, requests = self._service, self._service.requests
        state = str(service.status()["state"])
        if self._admitted and now - self._admitted[-1][0] > PAUSE_S:
            self._admitted.clear()
        self._admitted.append((now, service.dispatch.placed))
        since, before = self._admitted[0]
        rate = (service.dispatch.placed - before) / (now - since) if now > since else 0.0
        return RouterNow(
            state=state,
            why="" if service.ready() else service.why_not_ready().message,
            open=len(requests),
            queued=len(service.turns.queue),
            queue_size=service.rules.queue_size,
            coming=service.coming,
            migrated=requests.migrated,
            quarantined=requests.quarantined,
            requests_per_s=round(rate, 2),
        )


def progress_of(transfer: Transfer, about: Summary) -> list[float]:
    """The part of the prompt that has landed, by layer."""
    landed = [0] * about.layers[1]
    for event in transfer.attempts[0].events:
        entry = event.entry
        if isinstance(entry, Landing) and entry.layer < len(landed):
            landed[entry.layer] = max(landed[entry.layer], entry.last)
    return [round(min(1.0, tokens / max(1, about.prompt_tokens)), 3) for tokens in landed]
