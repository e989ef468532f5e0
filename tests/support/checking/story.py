"""A path through the states of a world in words."""

from collections.abc import Iterable, Iterator

from checking.frozen import shift
from checking.world import NODES, NOW, Action, Event, State, World

from tandem.sim.story import heard, tell

UNHEARD = {"lose": "an update of the store is lost", "double": "an update of the store comes twice"}


def story(world: World, path: Iterable[tuple[State, Action]]) -> list[str]:
    """Lines about each action, with ticks counted as the ranks count them."""
    ticks = dict.fromkeys(world.groups, -1)  # what is counted as 0
    lines: list[str] = []
    for state, action in path:
        event = world.event(state, action)
        if action.kind in UNHEARD:
            lines.append(f"{state[NOW]:6.2f} ms  {UNHEARD[action.kind]}")
        if event.index >= 0:
            lines += _told(world, event, ticks)
    return lines


def _told(world: World, event: Event, ticks: dict[str, int]) -> Iterator[str]:
    name, rank = world.places[event.index]
    try:
        step = world.ranks.step(event.state[NODES + event.index], event.method, event.message, event.state[NOW])
    except Exception as error:  # noqa: BLE001  this is the end of the story
        message = world.ranks.messages.values[event.message]
        yield f"{event.state[NOW]:6.2f} ms  {name}.{rank} <- {message or event.method}: {error!r}"
        return
    for happened, effects in step.taken.happened:
        told = [shift(effect, -ticks[name]) for effect in effects]
        counted = shift(happened, -ticks[name])
        lines = tell(event.state[NOW] * 1000, f"{name}.{rank}", counted, told)
        yield from lines or [f"{event.state[NOW]:6.2f} ms  {name}.{rank:<3} {heard(counted)}"]
    ticks[name] += step.ticks
