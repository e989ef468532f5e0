"""Faults that come at drawn times: stalls, partings, clients that leave in a given state, and operators."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from decode import intake
from tandem.core.config import RoleName
from tandem.core.ids import LEADER, Room
from tandem.core.inputs import Control, Knobs, Order
from tandem.sim.accidents import crashes, leaves, restarts, zombies
from tandem.sim.clock import Span
from tandem.sim.faults import Fault
from tandem.sim.node import Node
from tandem.sim.peer_link import Key
from tandem.sim.traps import STATES, Trap, Traps
from tandem.sim.world import World

TIGHT_TOKENS = 100
"""A pool that has no more room than this, while somebody waits for pages, is tiny indeed."""


def unleash(world: World, heal_us: int) -> None:
    """Put everything that happens at a drawn time into the world's clock. It is over when the world heals."""
    for kind, plan in PLANS.items():
        if world.swarm.has(kind):
            plan(world, world.swarm.stream(kind, "times"), heal_us)
    world.clock.at(heal_us, partial(heal, world))


def heal(world: World) -> None:
    """From now on everything goes well."""
    world.say("all is healed")
    world.swarm.heal()


def stalls(world: World, rng: random.Random, heal_us: int) -> None:
    """Ranks that take no events for up to 80 ms."""
    for _ in range(rng.choice([1, 3, 8])):
        key, at_us = rng.choice(world.nodes).key, rng.randrange(heal_us)
        lasting_us = min(rng.randint(1_000, 80_000), heal_us - at_us)
        world.clock.at(at_us, partial(_stall, world, key, lasting_us))


def _stall(world: World, key: Key, lasting_us: int) -> None:
    node = world.node(*key)
    world.say(f"{node.name} stalls for {lasting_us / 1000} ms")
    node.stall(lasting_us, Fault.STALLS)


def partings(world: World, rng: random.Random, heal_us: int) -> None:
    """Pairs of ranks lose each other for a while, each noticing at its own time: any, or two with a write given up."""
    sides = world.ranks_of(RoleName.PREFILL), world.ranks_of(RoleName.DECODE)
    for _ in range(rng.choice([1, 3])):
        at_us = rng.randrange(heal_us // 2)
        delays_us = rng.randint(0, 5_000), rng.randint(0, 5_000)
        gone_us = rng.randint(1_000, heal_us // 2 - 5_000)
        if all(sides):
            pairs = [(prefill.key, decode.key) for prefill in sides[0] for decode in sides[1]]
            leading = [pair for pair in pairs if pair[0][1] == pair[1][1] == LEADER]
            pair = rng.choice(pairs if rng.random() < 0.5 else leading)
            soon = partial(_part_soon, world, delays_us, rng.randint(1_000, 20_000), heal_us)
            part = partial(_part, world, pair, delays_us, gone_us)
            world.clock.at(at_us, part if rng.random() < 0.5 else partial(world.sequels.append, soon))


def _part_soon(world: World, delays_us: Span, gone_us: int, heal_us: int, sender: Node, receiver: Node) -> None:
    if world.clock.now_us + max(delays_us) + gone_us < heal_us:
        _part(world, (sender.key, receiver.key), delays_us, gone_us)


def _part(world: World, pair: tuple[Key, Key], delays_us: Span, gone_us: int) -> None:
    prefill, decode = (world.node(*key) for key in pair)
    world.say(f"{prefill.name} and {decode.name} lose each other for {gone_us / 1000} ms")
    world.swarm.acted(Fault.PARTINGS)
    world.part(prefill, decode, delays_us, gone_us)


def one_way(world: World, rng: random.Random, heal_us: int) -> None:
    """Words of a prefill group to a decode group are held up, and its writes there fail."""
    sides = [
        [group.name for group in world.groups if group.role is role] for role in (RoleName.PREFILL, RoleName.DECODE)
    ]
    for _ in range(rng.choice([1, 2])):
        at_us = rng.randrange(heal_us)
        until_us = min(heal_us, at_us + rng.choice([rng.randint(1_000, 10_000), rng.randint(10_000, 100_000)]))
        if all(sides):
            world.clock.at(at_us, partial(_cut, world, rng.choice(sides[0]), rng.choice(sides[1]), until_us))


def _cut(world: World, prefill: str, decode: str, until_us: int) -> None:
    world.say(f"nothing of {prefill} reaches {decode} until {until_us / 1000} ms")
    world.cuts[prefill, decode] = until_us


def operators(kind: Fault, order: Order) -> Callable[[World, random.Random, int], None]:
    """An order to a group: at a drawn time, or once a request is in a drawn state; what lasts is ended by the heal."""

    def plan(world: World, rng: random.Random, heal_us: int) -> None:
        traps = Traps(world)
        for _ in range(rng.choice([1, 2, 4])):
            group, at_us = rng.choice(world.groups), rng.randrange(heal_us)
            until_us = heal_us if order is Order.FLUSH else rng.randint(at_us, heal_us)
            give = partial(_order_until, world, kind, group.name, Control(order), until_us)
            seen = group if order is Order.FLUSH else rng.choice(world.groups)
            trap = Trap(seen.name, rng.choice(_moments(order, seen.role)), give)
            world.clock.at(at_us, give if rng.random() < 0.5 else partial(traps.set, trap))
            if order is not Order.FLUSH:
                world.clock.at(until_us, partial(world.router.to_group, group.name, Control(Order.RESUME)))

    return plan


def _moments(order: Order, role: RoleName) -> Sequence[str]:
    """States in which a request is when an order comes: it matters to a flush what is on the host."""
    on_host = intake.State.RETRACTED.value
    return (on_host,) if order is Order.FLUSH and on_host in STATES[role] else STATES[role]


def _order_until(world: World, kind: Fault, group: str, order: Control, until_us: int, *seen: Room) -> bool:
    del seen
    if world.clock.now_us <= until_us:
        _order(world, kind, group, order)
    return True


def releases(world: World, rng: random.Random, heal_us: int) -> None:
    """An operator has a group cut one off, be there one of that name or not; or as soon as a write is given up."""
    names = [group.name for group in world.groups]
    for _ in range(rng.choice([1, 2, 4])):
        order = Control(Order.RELEASE, rng.choice([*names, *names, "nobody"]))
        release = partial(_order, world, Fault.RELEASES, rng.choice(names), order)
        soon = partial(_release_soon, world, rng.random() < 0.5)
        world.clock.at(rng.randrange(heal_us), release if rng.random() < 0.5 else partial(world.sequels.append, soon))


def _release_soon(world: World, by_sender: bool, sender: Node, receiver: Node) -> None:
    one, other = (sender, receiver) if by_sender else (receiver, sender)
    if world.swarm.has(Fault.RELEASES):
        _order(world, Fault.RELEASES, one.key[0], Control(Order.RELEASE, other.key[0]))


def knobs(world: World, rng: random.Random, heal_us: int) -> None:
    """Chunk sizes and budgets change while requests run."""
    for _ in range(rng.choice([1, 4])):
        group = rng.choice(world.groups).name
        turned = Knobs(
            rng.choice([None, 1, 16, 256]), rng.choice([None, 1, 16, 128]), rng.choice([None, (), (4,), (16, 2)])
        )
        world.clock.at(rng.randrange(heal_us), partial(_order, world, Fault.KNOBS, group, turned))


def _order(world: World, kind: Fault, group: str, order: Control | Knobs) -> None:
    world.swarm.acted(kind)
    world.router.to_group(group, order)


def leavings(world: World, rng: random.Random, heal_us: int) -> None:
    """Clients that leave as soon as their request is seen in a certain state on rank 0."""
    traps = Traps(world)
    drawn = [rng.choice(world.groups) for _ in range(rng.choice([0, 2, 10]))]
    wanted = [(rng.randrange(heal_us), group.name, rng.choice(STATES[group.role])) for group in drawn]
    states = [(group.name, state) for group in world.groups for state in STATES[group.role]]
    wanted += [
        (0, *rare) for rare in states if rng.random() < 0.5
    ]  # some wait from the beginning: most states are rare
    for at_us, name, state in wanted:
        told = (name,) if rng.random() < 0.5 else tuple(each.name for each in world.groups)
        world.clock.at(at_us, partial(traps.set, Trap(name, state, partial(_leave, world, state, told))))


def _leave(world: World, state: str, told: tuple[str, ...], room: Room) -> bool:
    answer = world.client.answer(room)
    if answer.left is not None:
        return False
    world.say(f"the client of r{room.rid} leaves, as it is {state}")
    world.swarm.acted(Fault.ABORTS)
    world.router.cancel(answer.work, told)
    return True


def tightness(world: World, rng: random.Random, heal_us: int) -> None:
    """The pool was drawn small; see whether that makes anybody wait."""
    del rng, heal_us
    world.watchers.append(partial(_tight, world))


def _tight(world: World, node: Node) -> None:
    role = node.rank.scheduler.role
    if role.lengths()[1] and role.pool.free * role.pool.page_size < TIGHT_TOKENS:
        world.swarm.acted(Fault.TINY_POOLS)


PLANS: dict[Fault, Callable[[World, random.Random, int], None]] = {
    Fault.STALLS: stalls,
    Fault.PARTINGS: partings,
    Fault.ABORTS: leavings,
    Fault.PAUSES: operators(Fault.PAUSES, Order.PAUSE),
    Fault.DRAINS: operators(Fault.DRAINS, Order.DRAIN),
    Fault.FLUSHES: operators(Fault.FLUSHES, Order.FLUSH),
    Fault.KNOBS: knobs,
    Fault.ONE_WAY: one_way,
    Fault.RESTARTS: restarts,
    Fault.CRASHES: crashes,
    Fault.ZOMBIES: zombies,
    Fault.LEAVES: leaves,
    Fault.RELEASES: releases,
    Fault.TINY_POOLS: tightness,
}
