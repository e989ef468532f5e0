"""Which things need not be tried in every order: one that commutes with all else is taken at once, alone.

That is sound when such an action commutes with everything that can happen to its rank until it has happened itself, and
no invariant sees it happen. What happens to other ranks always commutes with it: a channel has one sender and one
receiver. These actions qualify:

- Hidden states come in. The rank launches a plan that it has stepped already, or keeps them until it steps it. Nothing
  else reads them, and what is launched is checked more strictly. But while a request moves to host memory or back, its
  copies stand in the same queue as forwards: which comes first matters.
- A forward starts. That concerns rank 0, which may then tick, and the last rank if nothing is sampled; else nobody.
- A decode forward ends, but not on the last rank, whose returns share a link with its ballots. The hidden states go on,
  on a link of their own. Its pages are checked until its harvest, not only until here. A copy that waits for it need
  not be made at once: its end is tried in every order.
- A baton comes to a decode rank to which nothing can come but batons, hidden states and ends of forwards; or to another
  rank like that, if it computes nothing. Ends of copies are something else.
- A baton comes that changes the replicated state only: all else that happens to a rank concerns its courier and engine.
- Facts come about rooms that rank 0 has forgotten. It keeps them, and never reads them again.

`tests/check` compares searches with and without.
"""

from collections.abc import Iterator

from checking.world import Action, State, World

from tandem.core.config import RoleName


def alone(world: World, state: State) -> Action | None:
    """An action that may be taken alone, if there is one."""
    for index, channel in enumerate(world.channels):
        if not state[world.first_channel + index]:
            continue
        hidden = channel.link == "hidden" and not world.summary(state, channel.receiver).moving
        if hidden or (channel.link == "facts" and _late(world, state, index)):
            return Action(channel.link, index)
    return next(_of_ranks(world, state), None)


def _of_ranks(world: World, state: State) -> Iterator[Action]:
    for index, (name, rank) in enumerate(world.places):
        group, seen = world.groups[name], world.summary(state, index)
        last = rank == group.size - 1
        if seen.forward and not seen.begun and rank and (not last or seen.samples):
            yield Action("engine", index)
        if seen.forward and seen.begun and not last and group.role is RoleName.DECODE:
            yield Action("engine", index)
        if rank and state[world.first_channel + (ring := world.link["ring", index - 1])]:
            closed = _closed(world, state, index) and (group.role is RoleName.DECODE or not seen.busy)
            if closed or _plain(world, state, index, ring):
                yield Action("ring", ring)


def _closed(world: World, state: State, index: int) -> bool:
    """Whether nothing that concerns KV, or that shares the engine with copies, can come before the next step.

    A real peer group may say something about any room that the courier keeps anything for.
    """
    seen = world.summary(state, index)
    talks = len(world.groups) > 1 and seen.sessions
    return not talks and not seen.moving and not world.around(state).may_touch(world.places[index])


def _plain(world: World, state: State, index: int, ring: int) -> bool:
    """Whether the next baton changes replicated state only. One that breaks something may come at once."""
    event = world.event(state, Action("ring", ring))
    try:
        return world.ranks.step(state[2 + index], event.method, event.message, state[0]).taken.plain
    except Exception:  # noqa: BLE001  it is raised again when the baton is delivered
        return True


def _late(world: World, state: State, index: int) -> bool:
    """Whether the next facts are about rooms that rank 0 has forgotten."""
    facts = world.ranks.messages.values[world.waiting(state, index)[0]]
    ended = world.summary(state, world.channels[index].receiver).ended
    return all(room in ended for room, _ in facts.entries)
