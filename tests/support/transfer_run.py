"""Prefill and decode groups in virtual time, with the router's oracle: for scenarios of transfers."""

from collections.abc import Callable

import msgspec

from decode.intake import State
from prefill.handoff import State as Handing
from tandem.core.config import Group, Limits, RoleName
from tandem.core.ids import LEADER, RequestId, Room
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.case import PAIR
from tandem.sim.client import Client
from tandem.sim.node import Node
from tandem.sim.run import build_engine, content_of
from tandem.sim.world import Cluster, Pace, World

LIMITS = Limits(page_size=4, num_pages=64, context=96, chunked_prefill_size=8, max_prefill_tokens=16)
FEW_PAGES = msgspec.structs.replace(LIMITS, num_pages=10, prefix_cache=False)
"""Enough for one long request, not for two."""
SLOW_WRITES = Pace(write_us=(20_000, 60_000))
DEADLINE_MS = 60_000
SECOND_US = 1_000_000


def work(number: int, prompt: int = 30, max_tokens: int = 4) -> Work:
    tokens = tuple(32 + (7 * number + index) % 90 for index in range(prompt))
    return Work(Room(RequestId(number), 1), tokens, max_tokens, (), Sampling(), None)


class Run:
    """Groups p0, p1, ... and d0, d1, ..., with these layers per rank, and the router's oracle."""

    def __init__(
        self,
        prefill: tuple[int, ...] = (4, 4),
        decode: tuple[int, ...] = (4, 4),
        *,
        limits: Limits = LIMITS,
        pace: Pace | None = None,
        prefills: int = 1,
        decodes: int = 1,
    ) -> None:
        groups = [Group(RoleName.PREFILL, f"p{number}", prefill) for number in range(prefills)]
        groups += [Group(RoleName.DECODE, f"d{number}", decode) for number in range(decodes)]
        self.client = Client(content_of)
        self.world = World(7, Cluster(tuple(groups), limits, pace or Pace()), build_engine, self.client)
        self.limits = limits

    def submit(self, *works: Work, to: tuple[str, str] = PAIR, remaining_ms: int = DEADLINE_MS, retries: int = 0):
        for each in works:
            self.world.router.submit(each, to, remaining_ms, retries=retries)

    def head(self, group: str) -> Node:
        return self.world.node(group, LEADER)

    def until(self, condition: Callable[[], object]) -> None:
        """Let things happen until the condition holds."""
        while not condition():
            assert self.world.clock.advance(), "it never came to that"

    def within(self, us: int) -> None:
        """Let everything happen that is due in this time from now."""
        self.world.run(until_us=self.world.clock.now_us + us)

    def state(self, group: str, number: int) -> State | Handing | None:
        """Where rank 0 of a group has a request."""
        request = self.head(group).rank.scheduler.role._requests.get(Room(RequestId(number), 1))
        return request and request.state

    def held(self, group: str, number: int) -> bool:
        """Whether some rank of a group keeps pages for a request."""
        room = Room(RequestId(number), 1)
        return any(node.rank.scheduler.role.pool.held(room) for node in self.world.ranks(group))

    def taken(self, group: str) -> int:
        """Pages that nobody else could get now, on all ranks of a group."""
        pools = [node.rank.scheduler.role.pool for node in self.world.ranks(group)]
        return sum(pool.num_pages - pool.available for pool in pools)

    def ended(self) -> dict[int, Reason | None]:
        """Runs to the end, holds the oracle against it; why each request has ended."""
        self.world.run()
        self.client.check()
        self.world.check_at_rest()
        return {int(answer.work.room.rid): answer.ended for answer in self.client.answers.values()}
