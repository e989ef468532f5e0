"""All ranks, what is under way between them and what surrounds them, as one small tuple of numbers.

Ticks are counted from rank 0's, so that paths of different length can lead to the same state.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from checking.environment import FAR_MS, Choice, Environment, Where
from checking.frozen import Frozen, shift
from checking.node import Node, Taken
from checking.numbers import Numbers
from checking.ranks import Ranks
from checking.setting import Setting
from checking.summary import Summary
from checking.unwilling import Unwilling

from consensus.store import RESYNC_MS
from tandem.core.config import Group
from tandem.core.effects import TellPeer
from tandem.core.events import Woke
from tandem.core.ids import RankId

State = tuple[int, ...]
"""The time, the surroundings, then each rank, then each channel."""
NOW, AROUND, NODES = 0, 1, 2
STUCK_MS = FAR_MS // 2
"""Whoever still asks again and again at that time will never get an answer."""


class Stuck(Exception):
    """Time passes and nothing else happens, again and again."""


class Action(NamedTuple):
    """One thing that can happen, to a rank, a channel, or by a choice of the surroundings."""

    kind: str
    index: int


class Channel(NamedTuple):
    """First in, first out, from one rank to another. The link is ring, hidden, facts, or names the peer."""

    link: str
    sender: int
    receiver: int


class Event(NamedTuple):
    """What an action is for a rank: the state without the message, then who takes what, and who sent it."""

    state: State
    index: int
    method: str = "on"
    message: int = 0
    sender: int = -1


class World:
    """The transition function of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.groups = {group.name: group for group in setting.groups}
        self.places: list[Where] = [(group.name, rank) for group in setting.groups for rank in range(group.size)]
        self.at = {where: index for index, where in enumerate(self.places)}
        self.channels = [channel for group in setting.groups for channel in self._channels_in(group)]
        self.channels += self._channels_between()
        self.link = {channel[:2]: index for index, channel in enumerate(self.channels)}
        self.first_channel = NODES + len(self.places)
        self.ranks = Ranks([work.room for work in setting.around.works])
        self._queues = Numbers(())
        self._arounds = Numbers(None)
        self._shifted: dict[tuple[int, int], int] = {}
        self._choices: dict[int, list[Choice]] = {}
        self._heard: dict[tuple[int, int, int], int] = {}
        self.warm = setting.warm
        self.start = self._start(setting)

    def _channels_in(self, group: Group) -> Iterator[Channel]:
        first = self.at[group.name, 0]
        for rank in range(group.size):
            if group.size > 1:
                yield Channel("ring", first + rank, first + (rank + 1) % group.size)
            if rank < group.size - 1:
                yield Channel("hidden", first + rank, first + rank + 1)
            yield Channel("facts", first + rank, first)

    def _channels_between(self) -> Iterator[Channel]:
        for sender, (one, _) in enumerate(self.places):
            for receiver, (other, _) in enumerate(self.places):
                if one != other:
                    yield Channel(f"peer {receiver}", sender, receiver)

    def _start(self, setting: Setting) -> State:
        nodes = []
        for name, rank in self.places:
            node = Node(self.groups[name], RankId(rank), setting.limits)
            if setting.refuses is not None and rank == self.groups[name].size - 1:
                node.rank.courier = Unwilling(self.groups[name], RankId(rank), setting.limits, setting.refuses)
            node.layerwise = node.layerwise and not setting.coarse
            for where, event in setting.before:
                if where == (name, rank):
                    node.on(event, 0)
            nodes.append(self.ranks.keep(node))
        return (0, self._arounds(setting.around), *nodes, *[0 for _ in self.channels])

    # reading a state

    def around(self, state: State) -> Environment:
        """The surroundings."""
        around: Environment = self._arounds.values[state[AROUND]]
        return around

    def summary(self, state: State, index: int) -> Summary:
        """What is to be known of a rank."""
        return self.ranks.summary(state[NODES + index])

    def waiting(self, state: State, channel: int) -> tuple[int, ...]:
        """The messages of a channel, by number, oldest first."""
        queue: tuple[int, ...] = self._queues.values[state[self.first_channel + channel]]
        return queue

    def values(self, state: State) -> Frozen:
        """What the numbers of a state stand for."""
        nodes = tuple(self.ranks.value(number) for number in state[NODES : self.first_channel])
        queues = (self.waiting(state, channel) for channel in range(len(self.channels)))
        messages = tuple(tuple(self.ranks.messages.values[message] for message in queue) for queue in queues)
        return (state[NOW], self.around(state), nodes, messages)

    # what can happen

    def actions(self, state: State) -> list[Action]:
        """Everything that can happen."""
        found = []
        faults = self.around(state).store_faults
        for index, queue in enumerate(state[self.first_channel :]):
            if queue:
                link = self.channels[index].link
                found.append(Action(link, index))
                if faults and link == "facts":
                    found += [Action("lose", index), Action("double", index)]
        for index in range(len(self.places)):
            if self.summary(state, index).computing:
                found.append(Action("engine", index))
        found += [Action("choice", index) for index in range(len(self._choices_in(state)))]
        return found + self._by_time(state, idle=self.at_rest(state, found))

    def at_rest(self, state: State, actions: list[Action]) -> bool:
        """Whether none of these has to happen."""
        return all(self.is_optional(state, action) for action in actions)

    def is_optional(self, state: State, action: Action) -> bool:
        """Whether it may as well never happen."""
        return action.kind == "choice" and self._choices_in(state)[action.index].optional

    def _by_time(self, state: State, idle: bool) -> list[Action]:
        """Time passes when nothing else has to happen, for whoever is due first, and a few times more for anybody."""
        found = []
        alarms = {index: self.summary(state, index).wake_ms for index, (_, rank) in enumerate(self.places) if not rank}
        due = {index: wake_ms for index, wake_ms in alarms.items() if wake_ms is not None and wake_ms < FAR_MS}
        if idle:
            first_ms = min(due.values(), default=0)
            found += [Action("wake", index) for index, wake_ms in due.items() if wake_ms == first_ms]
        elif self.around(state).hurries:
            found += [Action("hurry", index) for index in due]
        for index in range(len(self.places)):
            if self.summary(state, index).unacked and not self.waiting(state, self.link["facts", index]):
                found.append(Action("resend", index))
        return found

    def _choices_in(self, state: State) -> list[Choice]:
        around = state[AROUND]
        if around not in self._choices:
            self._choices[around] = list(self.around(state).choices())
        return self._choices[around]

    # what happens then

    def after(self, state: State, action: Action) -> State:
        """The state that an action leads to. Raises whatever the production code or an invariant raises."""
        event = self.event(state, action)
        if event.state[NOW] > STUCK_MS:
            raise Stuck(f"somebody still asks after {event.state[NOW]} ms")
        return event.state if event.index < 0 else self._take(event)

    def event(self, state: State, action: Action) -> Event:
        """What an action is for the rank that it concerns; index -1: for none."""
        kind, index = action
        match kind:
            case "engine":
                return Event(state, index, "compute")
            case "choice":
                choice = self._choices_in(state)[index]
                message = self.ranks.messages(choice.event)
                return Event(self._surround(state, choice.then), self.at[choice.where], "on", message)
            case "wake":
                return self._wake(state, index)
            case "hurry":
                around = self.around(state)
                return self._wake(self._surround(state, replace(around, hurries=around.hurries - 1)), index)
            case "resend":
                return Event(put(state, NOW, state[NOW] + RESYNC_MS), index, "on_timer")
            case _:
                return self._delivery(state, kind, index)

    def _wake(self, state: State, index: int) -> Event:
        now_ms = max(state[NOW], self.summary(state, index).wake_ms or 0)
        return Event(put(state, NOW, now_ms), index, "on", self.ranks.messages(Woke()))

    def _delivery(self, state: State, kind: str, index: int) -> Event:
        channel = self.channels[index]
        first, *rest = self.waiting(state, index)
        left = state if kind == "double" else put(state, self.first_channel + index, self._queues(tuple(rest)))
        if kind in ("lose", "double"):
            around = self.around(state)
            left = self._surround(left, replace(around, store_faults=around.store_faults - 1))
        method = {"ring": "on_ring", "facts": "on_facts"}.get(channel.link, "on")
        return Event(left, -1 if kind == "lose" else channel.receiver, method, first, channel.sender)

    def _take(self, event: Event) -> State:
        now_ms = event.state[NOW]
        step = self.ranks.step(event.state[NODES + event.index], event.method, event.message, now_ms)
        changed = list(event.state)
        changed[NODES + event.index] = step.node
        if step.ticks:
            self._count_from(changed, event.index, step.ticks)
        self._send(changed, event.index, step.taken, step.ticks)
        changed[AROUND] = self._heard_by(changed[AROUND], event.index, step.taken)
        if step.taken.ack is not None:
            at = NODES + event.sender
            changed[at] = self.ranks.step(changed[at], "on_ack", self.ranks.messages(step.taken.ack), now_ms).node
        return tuple(changed)

    def _count_from(self, changed: list[int], first: int, ticks: int) -> None:
        """Rank 0 has ticked: count its group's ticks from its new one. Its own state is counted so already."""
        for index in range(first + 1, first + self.groups[self.places[first][0]].size):
            changed[NODES + index] = self.ranks.shifted(changed[NODES + index], ticks)
        for index, channel in enumerate(self.channels):
            at = self.first_channel + index
            if (
                changed[at]
                and channel.link in ("ring", "hidden")
                and self.places[channel.sender][0] == self.places[first][0]
            ):
                changed[at] = self._shift_queue(changed[at], ticks)

    def _shift_queue(self, number: int, ticks: int) -> int:
        key = number, ticks
        if key not in self._shifted:
            messages = self.ranks.messages
            later = tuple(messages(shift(messages.values[each], ticks)) for each in self._queues.values[number])
            self._shifted[key] = self._queues(later)
        return self._shifted[key]

    def _send(self, changed: list[int], index: int, taken: Taken, ticks: int) -> None:
        sent: list[tuple[str, object]] = [("ring", shift(message, ticks)) for message in taken.ring]
        sent += [("hidden", shift(message, ticks)) for message in taken.hidden]
        if taken.facts is not None:
            sent.append(("facts", taken.facts))
        for effect in taken.told:
            if isinstance(effect, TellPeer) and (receiver := self.at.get((effect.group, effect.rank))) is not None:
                sent.append((f"peer {receiver}", effect.message))
        for link, message in sent:
            at = self.first_channel + self.link[link, index]
            changed[at] = self._queues((*self._queues.values[changed[at]], self.ranks.messages(message)))

    def _heard_by(self, around: int, index: int, taken: Taken) -> int:
        if not (taken.told or taken.verdicts or taken.forgotten):
            return around
        key = around, index, id(taken)  # which is kept
        if key not in self._heard:
            self._heard[key] = self._arounds(self._arounds.values[around].heard(self.places[index], taken))
        return self._heard[key]

    def _surround(self, state: State, around: Environment) -> State:
        return put(state, AROUND, self._arounds(around))


def put(state: State, at: int, value: int) -> State:
    """The same state with another part."""
    return (*state[:at], value, *state[at + 1 :])
