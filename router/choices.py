"""The choices of one HTTP answer: each is an exchange of its own, and they live and end together."""

import asyncio
from collections.abc import Callable

from router.errors import ApiError
from router.exchange import Exchange
from router.reader import Reader
from router.stream import Failed


class Choices:
    """`total` of them. The failure of one is that of the answer, so it ends the others too."""

    def __init__(self, total: int, reader: Reader) -> None:
        self.exchanges: list[Exchange] = []
        """Those that have begun, by their index."""
        self.failure: ApiError | None = None
        """Why there will be no whole answer: the reason of the first one that was taken."""
        self.abandoned = False
        self.reader = reader
        self._total = total
        self._finished: set[int] = set()

    @property
    def count(self) -> int:
        """Tokens generated so far."""
        return sum([exchange.stream.count for exchange in self.exchanges])

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.failure is not None or len(self._finished) == self._total

    def listen(self, bell: Callable[[], None]) -> None:
        """Have this called whenever some choice has text or has ended: now, if one has."""
        self.reader.listen(bell)

    async def finish(self) -> None:
        """Wait until nothing more will come."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            self.take()
            if self.over and not over.done():
                over.set_result(None)

        self.listen(look)
        await over

    def take(self) -> list[tuple[int, Exchange]]:
        """Those with news since the last call, by index: take what they have, it counts as read."""
        told = [(index, self.exchanges[index]) for index in self.reader.take()]
        for index, exchange in told:
            end = exchange.stream.end
            if isinstance(end, Failed):
                self.failure = self.failure or end.error
            elif end is not None:
                self._finished.add(index)
        if self.failure is not None:
            self.abandon()
        return told

    def fail(self, error: ApiError) -> None:
        """There is no place for those that have not begun."""
        self.failure = self.failure or error
        self.abandon()
        self.reader.ring()

    def abandon(self) -> None:
        """Nobody will read the rest, so no more begin. Does nothing to those that have ended."""
        self.abandoned = True
        for exchange in self.exchanges:
            exchange.abandon()
