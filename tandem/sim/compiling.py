"""The thread that compiles grammars, in virtual time: one after the other, each taking its own time."""

from functools import partial
from typing import TYPE_CHECKING

from tandem.core.effects import Compile
from tandem.core.events import Compiled
from tandem.ports import Engine
from tandem.sim.clock import between, stream

if TYPE_CHECKING:
    from tandem.sim.node import Node


class Compiling:
    """Of one rank. Whether it can be compiled is the engine's word, at once."""

    def __init__(self, node: "Node", engine: Engine) -> None:
        self._node = node
        self._engine = engine
        self._rng = stream(node.world.seed, f"grammars {node.name}")
        self._free_us = 0

    def put(self, job: Compile) -> None:
        """Queue a grammar."""
        world = self._node.world
        self._free_us = max(self._free_us, world.clock.now_us) + between(self._rng, world.pace.compile_us)
        world.clock.at(self._free_us, partial(self._node.on, Compiled(job.room, self._compiles(job.grammar))))

    def _compiles(self, grammar: str) -> bool:
        try:
            self._engine.compile(grammar)
        except ValueError:
            return False
        return True
