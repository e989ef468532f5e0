"""One request's place in the router, from its whole body to the end of its answer."""

from collections.abc import Callable
from typing import Self

from starlette.types import Receive

from router.limits import Usage
from router.queue import Wish
from router.tenants import Tenant
from router.turns import Turns


class Place:
    """Knows whose request it is: waits for its turn, and charges the tenant for what it uses. `with` gives it back."""

    def __init__(
        self,
        tenant: Tenant,
        receive: Receive,
        turns: Turns,
        usage: Usage,
        clock: Callable[[], float],
        leave: Callable[[], None],
    ) -> None:
        self.tenant = tenant
        self.queued_s = 0.0
        """For how long it waited for its turn."""
        self._receive = receive
        self._turns = turns
        self._usage = usage
        self._clock = clock
        self._leave = leave
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._usage.end()
        if self._begun:
            self._turns.end()

    async def turn(self, wish: Wish, deadline: float) -> None:
        """Wait until the groups have room.

        Whoever calls places the request before it awaits anything else. Raises ApiError, see `Turns.turn`.
        """
        waited_s = await self._turns.turn(self.tenant.name, wish, deadline, self._receive)
        if not wish.goes_on:
            self.queued_s = waited_s
            self._begun = True
        self.spend(wish.tokens)

    def spend(self, tokens: int) -> None:
        """Tokens of its prompts or answers."""
        self._usage.spend(self._clock(), tokens)
