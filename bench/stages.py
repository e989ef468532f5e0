"""One ring of production ranks in virtual time, with stages whose computing is a number of microseconds.

Rank, Scheduler, role, courier, Column and Table are the real ones; what is modelled is how long forwards and hops take.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import assert_never

from consensus.store import Column, Table
from tandem.assembly import build_rank
from tandem.core.config import Group, Limits
from tandem.core.effects import (
    BackUp,
    Compile,
    Drop,
    Effect,
    Fence,
    Forget,
    Launch,
    Observe,
    Post,
    Restore,
    SendHidden,
    SendNext,
    TellPeer,
    TellRouter,
    Verify,
)
from tandem.core.events import BackedUp, Combined, Event, Ran, Started, Woke
from tandem.core.ids import LEADER, Epoch, RankId
from tandem.core.inputs import Tokens
from tandem.core.messages import Ack, Facts
from tandem.core.plan import Plan
from tandem.core.rank import Rank
from tandem.core.role import Courier
from tandem.sim.clock import Action, Clock
from tandem.sim.wire import over_the_wire

EPOCH = Epoch(1)
TOKEN = 7
"""What every forward samples; no request stops at it."""
HOP_US = 50
"""A small message from one rank to another: about what a ZMQ socket needs on one host."""

StageTime = Callable[[Plan, RankId], int]
"""Microseconds that a rank computes a plan."""
HiddenTime = Callable[[int], int]
"""Microseconds that the hidden states of so many tokens need beyond a hop."""


class Watched:
    """A courier that also shows every plan of its rank."""

    def __init__(self, courier: Courier, shown: Callable[[Plan], None]) -> None:
        self._shown = shown
        self.on_event = courier.on_event
        self.answer = courier.answer
        self.open_rooms = courier.open_rooms
        self._on_plan = courier.on_plan

    def on_plan(self, plan: Plan) -> list[Effect]:
        """Show it and go on."""
        self._shown(plan)
        return self._on_plan(plan)


class Stage:
    """One rank, its column of the store, and an engine that is a queue and a time."""

    def __init__(self, ring: "Ring", rank: Rank) -> None:
        self.rank = rank
        self.busy_us = 0
        self.first_us = -1  # when its first forward began
        self.last_us = 0  # when its last one ended
        self._ring = ring
        self._clock = ring.clock
        self._column = Column(EPOCH, rank.place.rank)
        self._table = Table(EPOCH, rank.place.size) if rank.place.first else None
        self._queue: deque[Plan] = deque()
        self._computing = False
        self._alarm_us: int | None = None

    def on(self, event: Event) -> None:
        """Feed an event and carry out what comes of it."""
        for effect in self.rank.on(event, self._clock.now_us // 1000):
            self._do(effect)
        facts = self._column.flush(self._clock.now_us // 1000)
        if facts is not None:
            self._send(LEADER, partial(self._ring.stages[LEADER].on_facts, over_the_wire(facts), self))
        self._set_alarm()

    def _do(self, effect: Effect) -> None:
        place = self.rank.place
        match effect:
            case SendNext(message=message):
                self._send(RankId((place.rank + 1) % place.size), self._event(place.rank + 1, over_the_wire(message)))
            case SendHidden(header=header):
                arrives_us = self._ring.hop_us + self._ring.hidden_us(header.rows)
                self._clock.after(arrives_us, self._event(place.rank + 1, header))
            case Launch(plan=plan):
                self._queue.append(plan)
                self._clock.after(0, self._compute)
            case Observe(room=room, fact=fact):
                self._column.set(room, fact)
            case Forget(room=room):
                self._column.delete(room)
            case TellRouter() | TellPeer():
                self._ring.told(self, effect)
            case BackUp(room=room):
                self._clock.after(0, self._event(place.rank, BackedUp(room)))
            case Restore():
                pass
            case Post() | Drop() | Fence() | Verify() | Compile():
                raise NotImplementedError("a ring alone has nobody to send KV to, and no grammars")
            case _:
                assert_never(effect)

    def _event(self, rank: int, event: Event) -> Action:
        return partial(self._ring.stages[rank % self.rank.place.size].on, event)

    def _send(self, receiver: RankId, deliver: Action) -> None:
        """All links need the same time, so each is in order."""
        self._clock.after(0 if receiver == self.rank.place.rank else self._ring.hop_us, deliver)

    def _compute(self) -> None:
        if self._computing or not self._queue:
            return
        self._computing = True
        plan = self._queue.popleft()
        now_us = self._clock.now_us
        took_us = self._ring.stage_us(plan, self.rank.place.rank)
        self.first_us = now_us if self.first_us < 0 else self.first_us
        self.busy_us += took_us
        self.last_us = now_us + took_us
        self._clock.after(took_us, partial(self._computed, plan))
        self.on(Started(plan.tick))

    def _computed(self, plan: Plan) -> None:
        tokens: Tokens = ()
        if self.rank.place.last:
            tokens = tuple((row.room, (TOKEN,)) for row in plan.rows if row.samples)
        self._computing = False
        self.on(Ran(plan.tick, tokens))
        self._compute()

    def on_facts(self, facts: Facts, sender: "Stage") -> None:
        """Rank 0: merge a column and tell the rank what the group now knows."""
        assert self._table is not None
        touched, ack = self._table.on(facts)
        if ack is not None:
            self._send(sender.rank.place.rank, partial(sender.on_ack, ack))
        for room in touched:
            self.on(Combined(room, self._table.combined(room)))

    def on_ack(self, ack: Ack) -> None:
        """Rank 0 has our facts."""
        self._column.on_ack(ack, self._clock.now_us // 1000)

    def _set_alarm(self) -> None:
        wake_ms = self.rank.wake_ms()
        if wake_ms is not None and (self._alarm_us is None or wake_ms * 1000 < self._alarm_us):
            self._alarm_us = wake_ms * 1000
            self._clock.at(self._alarm_us, partial(self._woke, self._alarm_us))

    def _woke(self, alarm_us: int) -> None:
        if self._alarm_us == alarm_us:
            self._alarm_us = None
            self.on(Woke())


class Ring:
    """All ranks of one group. `told` is given what they say to routers and to the other group, `shown` every plan.

    Times of forwards must be such that hidden states arrive in order.
    """

    def __init__(
        self,
        group: Group,
        limits: Limits,
        stage_us: StageTime,
        *,
        hop_us: int = HOP_US,
        hidden_us: HiddenTime = lambda tokens: 0,
        told: Callable[[Stage, TellRouter | TellPeer], None] = lambda stage, effect: None,
        shown: Callable[[RankId, Plan], None] = lambda rank, plan: None,
    ) -> None:
        self.clock = Clock()
        self.hop_us = hop_us
        self.hidden_us = hidden_us
        self.stage_us = stage_us
        self.told = told
        self.stages: list[Stage] = []
        for number in range(group.size):
            rank = build_rank(group, RankId(number), EPOCH, limits)
            rank.courier = Watched(rank.courier, partial(shown, rank.place.rank))
            self.stages.append(Stage(self, rank))

    @property
    def leader(self) -> Stage:
        """Rank 0."""
        return self.stages[LEADER]

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is left to happen, or what was waited for has."""
        while not until() and self.clock.advance():
            pass
