"""One simulated rank: the production Rank, a column of the store and an engine, driven by the world's clock."""

import random
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, assert_never

import msgspec

from consensus.store import Column, Table
from tandem.core.effects import Effect, Forget, Launch, Observe, Post, SendHidden, SendNext, TellPeer, TellRouter
from tandem.core.events import Combined, Event, LayerRan, Moved, Ran, Started, Woke, Written
from tandem.core.ids import LEADER, LayerId, RankId, Room, Tick
from tandem.core.inputs import Submit, Tokens
from tandem.core.messages import Ack, Facts, Hello, Hidden
from tandem.core.plan import Plan
from tandem.core.rank import Rank
from tandem.ports import Engine
from tandem.sim.clock import Action
from tandem.sim.oracle import check_forward, check_write

if TYPE_CHECKING:
    from tandem.sim.world import World


MOST_LATE_US = 200_000
"""After an unsettled end, until what is left of the write lands."""

Sent = TypeVar("Sent", bound=msgspec.Struct)


def over_the_wire(message: Sent) -> Sent:
    """What the receiver reads: only what can be encoded arrives."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in microseconds: (least, most)."""

    layer_us: tuple[int, int] = (20, 200)
    message_us: tuple[int, int] = (5, 400)
    write_us: tuple[int, int] = (20, 2_000)
    handshake_us: tuple[int, int] = (0, 3_000)
    failing_writes: float = 0.0  # share of them; what a failed write has left behind is partial
    unsettled_failures: float = 0.0  # share of those: nobody can know whether the rest still lands


class Node:
    """Executes a rank's effects in virtual time."""

    def __init__(self, world: "World", rank: Rank, engine: Engine, hello: Hello, rng: random.Random) -> None:
        self.world = world
        self.rank = rank
        self.engine = engine
        self.hello = hello
        self.column = Column(rank.place.epoch, rank.place.rank)
        self.table = Table(rank.place.epoch, rank.place.size) if rank.place.first else None
        self.routers: dict[Room, None] = {}  # as a driver keeps the way to each room's router
        self._rng = rng
        self._queue: deque[Plan] = deque()
        self._busy = False
        self._hidden_in: dict[Tick, bytes] = {}
        self._hidden_out: dict[Tick, bytes] = {}
        self._wake_us: int | None = None

    def on(self, event: Event) -> None:
        """Feed an event and carry out what comes of it."""
        if isinstance(event, Submit):
            self.routers[event.work.room] = None
        effects = self.rank.on(event, self.world.clock.now_us // 1000)
        self.world.told(self, event, effects)
        for effect in effects:
            self._do(effect)
        self.world.check_tick(self)
        self._flush()
        self._set_alarm()

    def _do(self, effect: Effect) -> None:
        world, place = self.world, self.rank.place
        match effect:
            case SendNext(message=message):
                passed = over_the_wire(message)
                following = world.node(place.group, RankId((place.rank + 1) % place.size))
                world.send(self, following, "ring", lambda: following.on(passed))
            case SendHidden(header=header):
                payload = self._hidden_out.pop(header.tick)
                following = world.node(place.group, RankId(place.rank + 1))
                world.send(self, following, "hidden", lambda: following.take_hidden(header, payload))
            case Launch(plan=plan):
                self._queue.append(plan)
                self._compute()
            case Observe(room=room, fact=fact):
                self.column.set(room, fact)
            case Forget(room=room):
                self.column.delete(room)
                self.routers.pop(room, None)
            case Post():
                self._post(effect)
            case TellRouter(message=answer):
                world.to_client(self, over_the_wire(answer))
            case TellPeer(group=group, rank=rank, message=message):
                told = over_the_wire(message)
                peer = world.node(group, rank)
                world.send(self, peer, "peer", lambda: peer.on(told))
            case _:
                assert_never(effect)

    def take_hidden(self, header: Hidden, payload: bytes) -> None:
        """Hidden states have come in; the driver keeps the tensor, the rank sees the header."""
        self._hidden_in[header.tick] = payload
        self.on(header)

    # the engine

    def _compute(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        plan = self._queue.popleft()
        self.world.clock.after(0, lambda: self._run(plan))

    def _run(self, plan: Plan) -> None:
        """Compute at once, tell of it layer by layer over the time it would have taken."""
        self.on(Started(plan.tick))
        check_forward(plan, self.world.group(self.rank.place.group))
        ran: list[LayerId] = []
        hidden = self._hidden_in.pop(plan.tick, None)
        result = self.engine.run(plan, memoryview(hidden) if hidden is not None else None, ran.append)
        done_us = self.world.clock.now_us
        for layer in ran:
            done_us += self._rng.randint(*self.world.pace.layer_us)
            self.world.clock.at(done_us, self._layer_ran(plan.tick, layer))
        tokens: Tokens = ()
        if isinstance(result, memoryview):
            self._hidden_out[plan.tick] = bytes(result)
        else:
            tokens = tuple(zip([row.room for row in plan.rows if row.samples], result, strict=True))
        self.world.clock.at(done_us, lambda: self._ran(plan, tokens))

    def _layer_ran(self, tick: Tick, layer: LayerId) -> Action:
        return lambda: self.on(LayerRan(tick, layer))

    def _ran(self, plan: Plan, tokens: Tokens) -> None:
        check_forward(plan, self.world.group(self.rank.place.group))
        self._busy = False
        self.on(Ran(plan.tick, tokens))
        self._compute()

    # what leaves this rank

    def _post(self, post: Post) -> None:
        """The bytes land at one moment of the write, its end is told later. One that fails lands in part or never.

        If it is unsettled, that may be long after its end was told.
        """
        world, peer = self.world, self.world.node(post.peer, post.rank)
        senders, receivers = world.group(self.rank.place.group), world.group(post.peer)
        fails = self._rng.random() < world.pace.failing_writes
        landing = post.blocks[: self._rng.randint(0, len(post.blocks))] if fails else post.blocks
        landing_us = self._rng.randint(*world.pace.write_us)
        since = self.rank.scheduler.tick
        check_write(post, since, senders, receivers)

        def land() -> None:
            check_write(post, since, senders, receivers)
            for source, destination in landing:
                peer.engine.memory.block(post.layer, destination)[:] = self.engine.memory.block(post.layer, source)

        def told(result: Written) -> None:
            self.on(Moved(post.ticket, result))

        def landed() -> None:
            land()
            result = Written.FAILED_SETTLED if fails else Written.OK
            world.clock.after(self._rng.randint(0, landing_us), partial(told, result))

        if fails and self._rng.random() < world.pace.unsettled_failures:
            world.unsettled[post.room] = None
            world.clock.after(landing_us, partial(told, Written.FAILED_UNSETTLED))
            world.clock.after(landing_us + self._rng.randint(0, MOST_LATE_US), land)
        else:
            world.clock.after(landing_us, landed)

    def _flush(self) -> None:
        facts = self.column.flush(self.world.clock.now_us // 1000)
        if facts is not None:
            leader = self.world.node(self.rank.place.group, LEADER)
            self.world.send(self, leader, "store", lambda: leader.on_facts(facts, self))

    def on_facts(self, facts: Facts, sender: "Node") -> None:
        """Rank 0: merge a column and tell the rank what the group now knows."""
        assert self.table is not None
        touched, ack = self.table.on(facts)
        if ack is not None:
            self.world.send(self, sender, "store", lambda: sender.on_ack(ack))
        for room in touched:
            self.on(Combined(room, self.table.combined(room)))

    def on_ack(self, ack: Ack) -> None:
        """Rank 0 has our facts."""
        self.column.on_ack(ack, self.world.clock.now_us // 1000)

    def _set_alarm(self) -> None:
        wake_ms = self.rank.wake_ms()
        if wake_ms is None:
            return
        wake_us = wake_ms * 1000
        if self._wake_us is None or wake_us < self._wake_us:
            self._wake_us = wake_us
            self.world.clock.at(wake_us, lambda: self._alarm(wake_us))

    def _alarm(self, wake_us: int) -> None:
        if self._wake_us == wake_us:
            self._wake_us = None
            self.on(Woke())
