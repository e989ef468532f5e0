"""One simulated rank: the production Rank, a store link and an engine, driven by the world's clock."""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, assert_never

from kvtransfer.checksums import intact
from tandem.core.config import Group, Limits, RoleName
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
from tandem.core.events import Event, Verified, Woke
from tandem.core.ids import LEADER, Epoch, RankId, Room
from tandem.core.inputs import Submit
from tandem.core.messages import Hello, Hidden, Token
from tandem.core.rank import Rank
from tandem.ports import Engine
from tandem.sim.clock import Action, between, stream
from tandem.sim.compiling import Compiling
from tandem.sim.compute import Compute
from tandem.sim.faults import Fault
from tandem.sim.ledger import Ledger
from tandem.sim.orders import Orders
from tandem.sim.peer_link import PeerLink
from tandem.sim.reluctant import Reluctant
from tandem.sim.store_link import StoreLink
from tandem.sim.ticks import Record
from tandem.sim.wire import over_the_wire
from tandem.sim.writes import Writes

if TYPE_CHECKING:
    from tandem.sim.crashes import Doom
    from tandem.sim.world import World

FIRST = Epoch(1)
MOST_SKEW_MS = 10_000_000


class Node:
    """Executes a rank's effects in virtual time."""

    def __init__(self, world: "World", group: Group, limits: Limits, rank: Rank, engine: Engine) -> None:
        place = rank.place
        self.name = f"{place.group}.{place.rank}" + (f"#{place.epoch}" if place.epoch > FIRST else "")
        self.key = (place.group, place.rank)
        self.number = next(world.incarnations)
        self.group = group
        self.limits = limits
        self.role = group.role
        self.dead = False
        self.fellows: tuple[Node, ...] = ()  # all ranks of its ring, itself included
        self.doom: Doom | None = None
        self.world = world
        self.rank = rank
        self.record = rank.recorder = Record()
        self.engine = engine
        self.memory = engine.memory
        self.hello = Hello(group.name, place.rank, place.size, place.epoch, "sim", "sim", "", engine.memory.region)
        self.rng = stream(world.seed, f"node {self.name}")
        self.store = StoreLink(self)
        self.peers = PeerLink(self)
        self.writes = Writes(self)
        self.compute = Compute(self, engine)
        self.compiling = Compiling(self, engine)
        self.orders = Orders()
        self.ledger = Ledger(self.name, engine.memory, limits.page_size, world.client, self.orders)
        self.alone = group.role is RoleName.COLOCATED  # no other group touches its pages
        self.routers: dict[Room, None] = {}  # as a driver keeps the way to each room's router
        self._following = RankId((place.rank + 1) % place.size)
        self._wake_us: int | None = None
        self._stalls = 0
        self._why: Fault | None = None  # it stalls
        self._missed: deque[Action] = deque()
        self._skew_ms = self._skew()
        if world.swarm.has(Fault.REFUSED_VOTES):
            rank.courier = Reluctant(rank.courier, world.swarm)

    def _skew(self) -> int:
        swarm = self.world.swarm
        if self.rank.place.first or not swarm.has(Fault.CLOCK_SKEW):
            return 0
        return swarm.stream(Fault.CLOCK_SKEW, self.name).randint(-MOST_SKEW_MS, MOST_SKEW_MS)

    @property
    def leader(self) -> "Node":
        """Rank 0 of its ring, dead or alive."""
        return self.fellows[LEADER]

    @property
    def now_ms(self) -> int:
        """What this rank's own clock says."""
        if self._skew_ms:
            self.world.swarm.acted(Fault.CLOCK_SKEW)
        return self.world.clock.now_us // 1000 + self._skew_ms

    # what comes in

    def on(self, event: Event) -> None:
        """Feed an event and carry out what comes of it; a rank that stalls takes it later."""
        if self._stalls:
            if self.dead:
                return
            if self._why is not None:
                self.world.swarm.acted(self._why)
            self._missed.append(partial(self.on, event))
            return
        if isinstance(event, Submit):
            self.routers[event.work.room] = None
        effects = self.rank.on(event, self.now_ms)
        if self.world.tell is not None:
            self.world.told(self, event, effects)
        if self.doom is not None and (kept := self.doom.kept(event, effects)) is not None:
            self._strike(self.doom, effects, kept)
        else:
            self._carry_out(effects)
        if self.record.news:
            self.orders.check(self.rank, [frame for frame, _ in self.record.news])
            self.world.check_tick(self)

    def _strike(self, doom: "Doom", effects: list[Effect], kept: int) -> None:
        """It comes between two effects. What is not done yet, the rank does if it ever goes on."""
        self.doom = None
        for effect in effects[:kept]:
            self._do(effect)
        doom.strike(self)
        self.take(partial(self._carry_out, effects[kept:]))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        self.store.flush()
        if self.rank.place.first:
            self._set_alarm()

    def take(self, action: Action) -> None:
        """Let the tick loop do something that is no event, in its turn."""
        if not self._stalls:
            action()
        elif not self.dead:
            self._missed.append(action)

    def take_hidden(self, header: Hidden, payload: bytes) -> None:
        """Hidden states have come in; the driver keeps the tensor, the rank sees the header."""
        self.compute.take_hidden(header.tick, payload)
        self.on(header)

    def stall(self, lasting_us: int, why: Fault | None = None) -> None:
        """The tick loop does nothing for a while. Engine, writes, fences and the store have threads of their own."""
        self._stalls += 1
        self._why = why
        self.world.clock.after(lasting_us, self._go_on)

    def end(self) -> None:
        """This incarnation is gone, and what it knew. Writes that it has posted may still be on their way."""
        self.dead = True
        self.doom = None
        self._stalls += 1
        self._missed.clear()

    def _go_on(self) -> None:
        self._stalls -= 1
        while self._missed and not self._stalls:
            self._missed.popleft()()

    # what goes out

    def _do(self, effect: Effect) -> None:
        world, group = self.world, self.rank.place.group
        match effect:
            case SendNext(message=message):
                passed = over_the_wire(message)
                following = world.node(group, self._following)
                world.send(self, following, "ring", lambda: following.on(passed))
            case SendHidden(header=header):
                payload = self.compute.hidden_out(header.tick)
                following = world.node(group, self._following)
                world.send(self, following, "hidden", lambda: following.take_hidden(header, payload))
            case Launch(plan=plan):
                self.compute.put(plan)
            case Observe():
                self.store.observe(effect)
            case Forget(room=room):
                self.store.forget(effect)
                self.ledger.forget(room)
                self.routers.pop(room, None)
            case Post():
                self.writes.post(effect)
            case Drop():
                pass  # here every write begins when it is posted
            case Fence(group=other):
                self.peers.fence(other)
            case Verify():
                delay_us = between(self.rng, world.pace.verify_us)
                world.clock.after(delay_us, partial(self._verify, effect))
            case TellRouter(message=answer):
                world.router.to_client(self, over_the_wire(answer))
                if not isinstance(answer, Token):  # the last word
                    self.routers.pop(answer.room, None)
            case TellPeer():
                self.peers.say(effect)
            case BackUp() | Restore():
                self.compute.put(effect)
            case Compile():
                self.compiling.put(effect)
            case _:
                assert_never(effect)

    def _verify(self, effect: Verify) -> None:
        self.on(Verified(effect.commit, intact(self.memory, effect)))

    def _set_alarm(self) -> None:
        wake_ms = self.rank.wake_ms()
        if wake_ms is None:
            return
        wake_us = wake_ms * 1000
        if self._wake_us is None or wake_us < self._wake_us:
            self._wake_us = wake_us
            self.world.clock.at(wake_us, self._alarm(wake_us))

    def _alarm(self, wake_us: int) -> Action:
        def ring() -> None:
            if self._wake_us == wake_us:
                self._wake_us = None
                self.on(Woke())

        return ring
