"""The queue in front of placement: who waits while the groups are full, who is next, who is turned away. Pure."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tandem.core.requests import PRIORITY_MS

PRIORITY_S = PRIORITY_MS / 1000
"""What one step of priority is worth in waiting time: as in the groups' own queues."""
RATE_S = 10.0
"""How far back the rate looks at which requests leave the queue."""
RATE_TAKES = 5
"""Fewer tell nothing of a rate."""
WAIT_S = 1.0
"""When to come again where nothing is known of a rate."""
CHOICE_TOKENS = 256
"""What a choice costs beside its prompt, as so many tokens of prompt: an answer has to be decoded, too."""


class Wish(msgspec.Struct, frozen=True):
    """What one request asks of the groups, or a part of it. Its choices come in together."""

    tokens: int  # of all its prompts
    choices: int = 1
    priority: int = 0
    goes_on: bool = False
    """Other choices of the request had their turn. It may wait as long as the request, and makes room for nobody."""


@dataclass(eq=False)
class Ticket:
    """One that waits. `due` decides among those of its tenant: it has the age in it, so an order once made stays."""

    tenant: str
    wish: Wish
    arrived: float
    deadline: float  # when it has waited too long
    request_deadline: float
    number: int
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.due = self.arrived - self.wish.priority * PRIORITY_S

    def __lt__(self, other: "Ticket") -> bool:
        return (self.due, self.number) < (other.due, other.number)


@dataclass
class Share:
    """One tenant's: its waiting tickets, and how much it has got. The tenant that got least is next."""

    tickets: list[Ticket] = field(default_factory=list)
    got: float = 0.0


class Rate:
    """How fast the queue is served while somebody waits in it: what it does when nobody does tells nothing."""

    def __init__(self) -> None:
        self._takes: deque[float] = deque()
        self._since: float | None = None

    def busy(self, now: float, *, waiting: bool) -> None:
        """Whether somebody waits from now on."""
        if not waiting:
            self._since = None
            self._takes.clear()
        elif self._since is None:
            self._since = now

    def take(self, now: float) -> None:
        """One is served."""
        if self._since is not None:
            self._takes.append(now)
            self._forget(now)

    def per_s(self, now: float) -> float | None:
        """Of the last seconds; None while that is not known."""
        self._forget(now)
        if self._since is None or len(self._takes) < RATE_TAKES:
            return None
        return len(self._takes) / max(now - max(self._since, now - RATE_S), 1e-3)

    def _forget(self, now: float) -> None:
        while self._takes and self._takes[0] < now - RATE_S:
            self._takes.popleft()


class Queue:
    """Bounded; fair over tenants, by what their requests cost; by priority and age among those of one tenant.

    Whoever is turned away by another one's coming is told by the return value: nobody is ever lost.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._shares: dict[str, Share] = {}
        self._count = 0
        self._number = 0
        self._now_got = 0.0  # what the tenant of the last ticket had got: who comes anew begins here
        self._rate = Rate()

    def __len__(self) -> int:
        return self._count

    def join(self, tenant: str, wish: Wish, now: float, deadline: float) -> tuple[Ticket, Ticket | None]:
        """The new ticket, and who does not wait any more: nobody, the new one, or one that had to make room.

        With the queue full, the last of the tenant that has most in it goes. Who would wait longer than the timeout is
        turned away at once: that is better than to be told so after the wait.
        """
        self._number += 1
        until = deadline if wish.goes_on else min(deadline, now + self._timeout_s)
        ticket = Ticket(tenant, wish, now, until, deadline, self._number)
        wait_s = None if wish.goes_on else self._wait_s(ticket, now)
        if wait_s is not None and wait_s > self._timeout_s:
            return ticket, ticket
        self._add(ticket)
        out = self._last_new() if self._count > self._size else None
        if out is not None:
            self.leave(out, now)
        self._rate.busy(now, waiting=self._count > 0)
        return ticket, out

    def take(self, now: float, fits: Callable[[Ticket], bool]) -> Ticket | None:
        """The next one, if there is room for it. Nobody overtakes it meanwhile, or large ones would wait for ever."""
        share = min((share for share in self._shares.values() if share.tickets), key=_next, default=None)
        if share is None or not fits(share.tickets[0]):
            return None
        ticket = share.tickets[0]
        self._now_got = max(self._now_got, share.got)
        share.got += cost(ticket.wish)
        self._rate.take(now)
        self.leave(ticket, now)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> bool:
        """It waits no more; False when it did not."""
        share = self._shares.get(ticket.tenant)
        if share is None or ticket not in share.tickets:
            return False
        share.tickets.remove(ticket)
        self._count -= 1
        self._rate.busy(now, waiting=self._count > 0)
        self._tidy()
        return True

    def expire(self, now: float) -> list[Ticket]:
        """Those that have waited too long, out of the queue."""
        late = [ticket for share in self._shares.values() for ticket in share.tickets if ticket.deadline <= now]
        for ticket in late:
            self.leave(ticket, now)
        return late

    def clear(self, now: float, *, going_on: bool = True) -> list[Ticket]:
        """All of them, out of the queue: the router is to end. Those of requests that have begun may be left in it."""
        every = [ticket for share in self._shares.values() for ticket in share.tickets]
        every = [ticket for ticket in every if going_on or not ticket.wish.goes_on]
        for ticket in every:
            self.leave(ticket, now)
        return every

    def retry_after_s(self, now: float) -> float:
        """When it makes sense to come again: when those who wait now have been served."""
        rate = self._rate.per_s(now)
        return WAIT_S if rate is None else max(WAIT_S, min(self._count / rate, self._timeout_s))

    def _wait_s(self, ticket: Ticket, now: float) -> float | None:
        """How long a new one would wait, as far as can be told: tenants are served in turn."""
        rate = self._rate.per_s(now)
        if rate is None:
            return None
        own = self._shares.get(ticket.tenant, Share()).tickets
        before = bisect_left(own, ticket)
        others = (len(share.tickets) for name, share in self._shares.items() if name != ticket.tenant)
        return (before + sum(min(length, before + 1) for length in others)) / rate

    def _add(self, ticket: Ticket) -> None:
        share = self._shares.setdefault(ticket.tenant, Share())
        if not share.tickets:
            share.got = max(share.got, self._now_got)  # nobody saves up turns by staying away
        insort(share.tickets, ticket)
        self._count += 1

    def _last_new(self) -> Ticket | None:
        """Of the tenant with most requests in it that have not begun, the last one; None when all have."""
        new = [[ticket for ticket in share.tickets if not ticket.wish.goes_on] for share in self._shares.values()]
        longest = max(new, key=len)
        return longest[-1] if longest else None

    def _tidy(self) -> None:
        """Forget who waits no more and has got no more than whoever comes anew."""
        for name, share in list(self._shares.items()):
            if not share.tickets and share.got <= self._now_got:
                del self._shares[name]


def cost(wish: Wish) -> int:
    """What a turn is worth, in tokens of prompt."""
    return CHOICE_TOKENS * wish.choices + wish.tokens


def _next(share: Share) -> tuple[float, Ticket]:
    return share.got, share.tickets[0]
