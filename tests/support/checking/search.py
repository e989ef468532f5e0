"""Breadth first through all states of a world: the first violation found has a shortest path."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from checking.invariants import Invariants
from checking.node import digest_of_tick
from checking.reduction import alone
from checking.setting import Setting
from checking.story import story
from checking.world import Action, State, World

MOST_STATES = 5_000_000


class NotAtRest(Exception):
    """Nothing has to happen any more, but not everything has come to its end."""


class TooManyStates(Exception):
    """The model is too large to be explored, or never comes to an end."""


class Violation(Exception):
    """What broke, and the shortest path to it in words."""

    def __init__(self, cause: Exception, story: list[str]) -> None:
        super().__init__("\n".join([f"{type(cause).__name__}: {cause}", *story]))
        self.cause = cause


@dataclass
class Explored:
    """What a search has seen."""

    states: int = 0
    transitions: int = 0
    ends: set[object] = field(default_factory=set)  # states of all parts when nothing had to happen any more
    answers: set[object] = field(default_factory=set)  # what routers had been told by then


def explore(setting: Setting, reduce: bool = True) -> Explored:
    """Look at every state; with `reduce`, at one order of what commutes. Raises Violation, or TooManyStates."""
    with patch("tandem.core.scheduler.advance", digest_of_tick), _without_collector():
        return Search(World(setting), reduce).run()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Everything is kept and nothing is a cycle: looking for garbage takes a fifth of the time and finds none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Search:
    """One breadth-first search."""

    def __init__(self, world: World, reduce: bool) -> None:
        self._world = world
        self._reduce = reduce
        self._invariants = Invariants(world)
        self._explored = Explored()
        self._came_from: dict[State, tuple[State, Action] | None] = {world.start: None}

    def run(self) -> Explored:
        """To the end, or to the first violation."""
        frontier = [self._begin()]
        while frontier:
            frontier = [after for state in frontier for after in self._expand(state)]
            if len(self._came_from) > MOST_STATES:
                raise TooManyStates(f"more than {MOST_STATES}")
        self._explored.states = len(self._came_from)
        return self._explored

    def _begin(self) -> State:
        """Where all orders begin: what the surroundings do comes first, then messages, then what ranks compute."""
        state, world = self._world.start, self._world
        while self._world.warm and not world.around(state).settled():
            actions = [action for action in world.actions(state) if not world.is_optional(state, action)]
            action = min(actions, key=lambda action: ("choice", action.kind, "engine").index(action.kind))
            after = world.after(state, action)
            self._came_from[after] = (state, action)
            state = after
        return state

    def _expand(self, state: State) -> list[State]:
        """The states after this one that have not been seen."""
        actions = self._actions(state)
        fresh = []
        for action in actions:
            try:
                after = self._world.after(state, action)
                self._invariants.check(after)
            except Exception as error:
                raise Violation(error, story(self._world, [*self._path(state), (state, action)])) from error
            if after not in self._came_from:
                self._came_from[after] = (state, action)
                fresh.append(after)
        self._explored.transitions += len(actions)
        return fresh

    def _actions(self, state: State) -> list[Action]:
        if self._reduce and (action := alone(self._world, state)) is not None:
            return [action]
        actions = self._world.actions(state)
        if self._world.at_rest(state, actions):
            self._end(state)
        return actions

    def _end(self, state: State) -> None:
        if left := self._invariants.left(state):
            raise Violation(NotAtRest("; ".join(left)), story(self._world, self._path(state)))
        self._explored.ends.add(self._world.values(state))
        self._explored.answers.add(self._world.around(state).answers)

    def _path(self, state: State) -> list[tuple[State, Action]]:
        path = []
        while (step := self._came_from[state]) is not None:
            path.append(step)
            state = step[0]
        return path[::-1]
