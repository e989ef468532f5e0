"""Faults that end epochs: whole groups, ranks that die, and ranks that freeze; at drawn times and at named points."""

import random
from collections.abc import Callable
from functools import partial

from tandem.sim.crashes import Doom, Point
from tandem.sim.epochs import DEAD_US, DOWN_US
from tandem.sim.node import Node
from tandem.sim.world import World

POINTS = [point for point in Point if point is not Point.RE_FORMING]
MOST_TIMES = 30
"""That a rank is at a point before something happens to it."""
SOON_US = 2_000
"""After a group has formed anew, until something happens to it again."""
ASLEEP_US = (DEAD_US[1], 80_000)
"""How long a rank is frozen: its fellows have all noticed by then."""

Strike = Callable[[Node], None]


def restarts(world: World, rng: random.Random, heal_us: int) -> None:
    """Groups end and are back by the heal."""
    for _ in range(rng.choice([1, 1, 2])):
        _plan(world, rng, heal_us, lambda node: world.epochs.restart(node.key[0], _down_us(world, rng, heal_us)))


def crashes(world: World, rng: random.Random, heal_us: int) -> None:
    """Ranks die, and others are in their places by the heal."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        _plan(world, rng, heal_us, lambda node: world.epochs.crash(node, _down_us(world, rng, heal_us)))


def zombies(world: World, rng: random.Random, heal_us: int) -> None:
    """Ranks freeze, and wake; some have been replaced by then, and a rank that is a ring by itself always."""

    def freeze(node: Node) -> None:
        replaced = len(node.fellows) == 1 or rng.random() < 0.5
        world.epochs.freeze(node, rng.randint(*ASLEEP_US), _down_us(world, rng, heal_us) if replaced else None)

    for _ in range(rng.choice([1, 1, 2])):
        _plan(world, rng, heal_us, freeze)


def leaves(world: World, rng: random.Random, heal_us: int) -> None:
    """Ranks are told to end; what their groups have may take longer than they are given."""

    def leave(node: Node) -> None:
        drain_us = min(rng.choice([0, 10_000, 50_000, 1_000_000]), heal_us - world.clock.now_us)
        world.epochs.leave(node, drain_us, rng.randint(*DOWN_US))

    for _ in range(rng.choice([1, 1, 2])):
        _plan(world, rng, heal_us, leave)


def _down_us(world: World, rng: random.Random, heal_us: int) -> int:
    return max(1, min(rng.randint(*DOWN_US), heal_us - world.clock.now_us))


def _plan(world: World, rng: random.Random, heal_us: int, strike: Strike) -> None:
    """Now or never: at a time, at a point of what a rank does from then on, or when its group has formed anew."""
    key, at_us = rng.choice(world.nodes).key, rng.randrange(heal_us)
    how, point, nth = rng.random(), rng.choice(POINTS), rng.randint(1, rng.choice([1, 3, MOST_TIMES]))
    cut, soon_us = random.Random(rng.getrandbits(32)), rng.randint(0, SOON_US)

    def arm() -> None:
        world.node(*key).doom = Doom(point, nth, strike, world.swarm, cut)

    def hit() -> None:
        if world.swarm.acting:
            strike(world.node(*key))

    if how < 0.25:
        world.clock.at(at_us, hit)
    elif how < 0.4:
        world.epochs.on_formed[key[0]] = partial(world.clock.after, soon_us, hit)
    else:
        world.clock.at(min(at_us, heal_us // 2), arm)
