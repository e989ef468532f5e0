"""Turns on a loop: whoever waits has its turn or an error, and whatever happens meanwhile, nothing of it stays."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.errors import ApiError, shutting_down
from router.queue import Queue, Wish
from router.turns import Turns

LATER_S = 1e6


class Client:
    """Stays until it hangs up."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, str]:
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Bench:
    """One place, which the first request has until `free`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(Queue(8, 60.0), 1, 600.0, lambda wish: True, lambda: None, self.loop)

    async def ask(self, client: Client) -> float:
        return await self.turns.turn("", Wish(1), self.loop.time() + LATER_S, client.receive)

    async def waiting(self) -> tuple[Client, "asyncio.Task[float]"]:
        """Somebody who waits."""
        client = Client()
        task = asyncio.create_task(self.ask(client))
        await rounds()
        assert not task.done()
        return client, task

    async def serves(self) -> None:
        """Nothing is left, and who comes next has its turn."""
        await rounds()
        assert (len(self.turns.queue), self.turns.begun, len(self.turns._futures)) == (0, 0, 0)
        assert await asyncio.wait_for(self.ask(Client()), 10) == 0.0


async def rounds() -> None:
    """Let everybody else go on until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def on_a_loop(story: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            bench = Bench()
            await story(bench)
            bench.turns.close()

        asyncio.run(run())

    return test


def refusal(task: "asyncio.Task[float]") -> int:
    error = task.exception()
    assert isinstance(error, ApiError)
    return error.status


@on_a_loop
async def test_who_leaves_while_it_waits_leaves_nothing(bench: Bench) -> None:
    await bench.ask(Client())
    client, task = await bench.waiting()
    client.hang_up()
    await rounds()
    assert refusal(task) == 499
    bench.turns.end()
    await bench.serves()


@on_a_loop
async def test_who_is_stopped_while_it_waits_leaves_nothing(bench: Bench) -> None:
    await bench.ask(Client())
    _, task = await bench.waiting()
    task.cancel()
    await rounds()
    bench.turns.end()
    await bench.serves()


@on_a_loop
async def test_who_is_stopped_in_the_moment_of_its_turn_gives_it_to_the_next(bench: Bench) -> None:
    await bench.ask(Client())
    _, first = await bench.waiting()
    _, second = await bench.waiting()
    bench.turns.end()  # the first one's turn, which it does not know of yet
    first.cancel()
    await rounds()
    assert first.cancelled()
    assert second.done()
    assert second.exception() is None
    bench.turns.end()
    await bench.serves()


@on_a_loop
async def test_a_turn_counts_even_if_its_client_left_in_the_same_moment(bench: Bench) -> None:
    await bench.ask(Client())
    client, task = await bench.waiting()
    client.hang_up()
    bench.turns.end()
    await rounds()
    if task.exception() is None:
        bench.turns.end()
    await bench.serves()


@on_a_loop
async def test_a_router_that_ends_refuses_who_waits_and_who_comes_later(bench: Bench) -> None:
    """One whose body took long to understand would wait for a turn that nobody gives any more."""
    await bench.ask(Client())
    _, task = await bench.waiting()
    bench.turns.clear(shutting_down(), going_on=True)
    await rounds()
    assert refusal(task) == 503
    with pytest.raises(ApiError) as refused:
        await asyncio.wait_for(bench.ask(Client()), 10)
    assert refused.value.status == 503
    assert bench.turns.begun == 1


@on_a_loop
async def test_what_has_begun_in_part_goes_on_beyond_the_most_and_through_a_drain(bench: Bench) -> None:
    await bench.ask(Client())
    waiting, task = await bench.waiting()
    bench.turns.clear(shutting_down(), going_on=False)
    await rounds()
    assert refusal(task) == 503
    rest = Wish(1, goes_on=True)
    assert await bench.turns.turn("", rest, bench.loop.time() + LATER_S, waiting.receive) == 0.0
    assert bench.turns.begun == 1


def test_the_portions_of_a_wide_request_leave_turns_to_others() -> None:
    served: list[str] = []

    async def ask(turns: Turns, tenant: str, portions: int) -> None:
        for portion in range(portions):
            wish = Wish(1, choices=8, goes_on=portion > 0)
            await turns.turn(tenant, wish, asyncio.get_running_loop().time() + LATER_S, Client().receive)
            served.append(tenant)

    async def story() -> None:
        loop, room = asyncio.get_running_loop(), [1]

        def fits(wish: Wish) -> bool:
            return len(served) < room[0]

        turns = Turns(Queue(8, 60.0), 100, 600.0, fits, lambda: None, loop)
        wide = asyncio.create_task(ask(turns, "wide", 5))
        await rounds()
        narrow = asyncio.create_task(ask(turns, "narrow", 1))
        await rounds()
        assert served == ["wide"]
        for room[0] in range(2, 7):
            turns.pump()
            await rounds()
        await asyncio.gather(wide, narrow)
        assert (len(turns.queue), turns.begun) == (0, 2)
        turns.close()

    asyncio.run(story())
    assert "narrow" in served[:3], "the wide one has four more portions"
