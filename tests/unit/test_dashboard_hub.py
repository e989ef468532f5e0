"""The stream of snapshots: none without viewers, one for all of them, and none that a slow one holds up."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from router.dashboard.hub import MOST_VIEWERS, Hub
from router.dashboard.words import EdgeNow, FirstTokens, GroupNow, PagesNow, RankNow, RouterNow, Snapshot
from router.errors import ApiError

DEADLINE_S = 60.0
RETRY = b"retry: 1000\n\n"


def snapshot(number: int = 0, groups: tuple[GroupNow, ...] = (), edges: tuple[EdgeNow, ...] = ()) -> Snapshot:
    router = RouterNow("ready", "", number, 0, 1024, 0, 0, 0, 0.0)
    nothing = FirstTokens(0, 0.0, 0.0, {})
    return Snapshot(0, "m", "1", router, list(groups), list(edges), [], 0, [], nothing, [], [], 0, [], 0)


class Maker:
    """Makes a snapshot whenever the test lets it."""

    def __init__(self) -> None:
        self.made = 0
        self.go = asyncio.Semaphore(0)
        self.broken = False

    async def __call__(self) -> Snapshot:
        await self.go.acquire()
        if self.broken:
            raise RuntimeError("a bug")
        self.made += 1
        return snapshot(self.made)


def number_of(event: bytes) -> int:
    assert event.startswith(b"event: snapshot\ndata: ")
    assert event.endswith(b"}\n\n")
    return msgspec.json.decode(event.split(b"data: ")[1])["router"]["open"]


async def settled() -> None:
    """Everybody who can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


def made(unread_s: float = DEADLINE_S) -> tuple[Hub, Maker, asyncio.Event]:
    maker, over = Maker(), asyncio.Event()
    return Hub(maker, over, 0.0, unread_s), maker, over


def never() -> None:
    raise AssertionError("it reads")


async def opened(hub: Hub, cut: Callable[[], None] = never) -> AsyncIterator[bytes]:
    stream = hub.stream(cut)
    assert await anext(stream) == RETRY
    return stream


def test_nothing_is_made_while_nobody_looks():
    async def run() -> None:
        hub, maker, _ = made()
        maker.go.release()
        await settled()
        assert maker.made == 0
        stream = await opened(hub)
        assert number_of(await anext(stream)) == 1
        await stream.aclose()
        for _ in range(5):
            maker.go.release()
        await settled()
        assert (maker.made, hub.viewers) == (1, 0)

    asyncio.run(run())


def test_all_viewers_get_the_same_snapshot():
    async def run() -> None:
        hub, maker, _ = made()
        streams = [await opened(hub) for _ in range(3)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await settled()
        maker.go.release()
        assert [number_of(event) for event in await asyncio.gather(*waiting)] == [1, 1, 1]
        assert maker.made == 1
        for stream in streams:
            await stream.aclose()

    asyncio.run(run())


def test_who_comes_later_is_shown_the_last_one_at_once():
    async def run() -> None:
        hub, maker, _ = made()
        first = await opened(hub)
        maker.go.release()
        await anext(first)
        second = await opened(hub)
        assert number_of(await anext(second)) == 1
        await first.aclose()
        await second.aclose()

    asyncio.run(run())


def test_who_reads_slowly_misses_snapshots_and_holds_up_nobody():
    async def run() -> None:
        hub, maker, _ = made()
        slow, fast = await opened(hub), await opened(hub)
        first = asyncio.ensure_future(anext(slow))
        numbers = []
        for _ in range(4):
            event = asyncio.ensure_future(anext(fast))
            await settled()
            maker.go.release()
            numbers.append(number_of(await event))
        assert numbers == [1, 2, 3, 4]
        assert number_of(await first) == 1
        late = asyncio.ensure_future(anext(slow))
        assert number_of(await late) == 4, "the newest, and not those that it missed"
        await slow.aclose()
        await fast.aclose()

    asyncio.run(run())


def test_who_takes_nothing_is_cut_off_and_who_waits_for_news_is_not():
    async def run() -> None:
        hub, maker, _ = made(unread_s=0.0)
        cut = asyncio.Event()
        deaf = await opened(hub, cut.set)
        waiting = asyncio.ensure_future(anext(await opened(hub)))
        await asyncio.wait_for(cut.wait(), DEADLINE_S)
        await deaf.aclose()  # as its connection does
        assert hub.viewers == 1
        maker.go.release()
        assert number_of(await waiting) == 1

    asyncio.run(run())


def test_the_streams_end_with_the_router():
    async def run() -> None:
        hub, _, over = made()
        stream = await opened(hub)
        waiting = asyncio.ensure_future(anext(stream, None))
        await settled()
        over.set()
        assert await waiting is None
        assert hub.viewers == 0

    asyncio.run(run())


def test_a_bug_ends_the_streams_and_the_next_page_begins_anew():
    async def run() -> None:
        hub, maker, _ = made()
        stream = await opened(hub)
        maker.broken = True
        maker.go.release()
        with pytest.raises(RuntimeError, match="a bug"):
            await anext(stream)
        maker.broken = False
        maker.go.release()
        again = await opened(hub)
        assert number_of(await anext(again)) == 1
        await again.aclose()

    asyncio.run(run())


def test_there_is_a_limit_to_viewers():
    async def run() -> None:
        hub, _, _ = made()
        streams = []
        for _ in range(MOST_VIEWERS):
            hub.check()
            streams.append(await opened(hub))
        with pytest.raises(ApiError) as refused:
            hub.check()
        assert (refused.value.status, refused.value.code) == (503, "too_many_dashboards")
        for stream in streams:
            await stream.aclose()
        hub.check()

    asyncio.run(run())


def test_a_snapshot_of_sixty_four_groups_is_small():
    """A quarter of a megabyte a second is what a page on a telephone can still take."""
    ranks = [
        RankNow(f"p{number}.0", "10.0.0.1:40000", "1883309398939402241", "cpu bfloat16", True, "", "x" * 60, 10**6, 0)
        for number in range(8)
    ]
    groups = tuple(
        GroupNow(f"p{number}", "prefill", "usable", "", 8, 64, 10, ranks, "8fcc1a168683cfe7", 0.1, False, 1, 1,
                 PagesNow(4096, 1, 1, 1, 1))
        for number in range(64)
    )  # fmt: skip
    edges = tuple(EdgeNow(f"p{one}", f"d{other}", 1e9, 3, "closed", 1) for one in range(32) for other in range(32))
    assert len(msgspec.json.encode(snapshot(0, groups, edges))) < 256 * 1024
