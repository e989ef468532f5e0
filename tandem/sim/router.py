"""The router in the simulator: submits requests, hears answers, and goes on with what groups had to give up."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tandem.core.ids import LEADER, Epoch, Room
from tandem.core.inputs import Control, Knobs, Submit
from tandem.core.messages import Cancel, Cancelled, Done, Evicted, Token
from tandem.core.requests import Reason, Work
from tandem.sim.client import Answer, Client
from tandem.sim.clock import Span, between, stream
from tandem.sim.routes import Rerouting, Route

if TYPE_CHECKING:
    from tandem.sim.node import Node
    from tandem.sim.world import World

PATIENT_MS = 600_000
NOBODY_LATE: Mapping[str, int] = {}
HEARING_US: Span = (0, 10_000)
"""Until the router knows what groups could not tell each other."""
ROUTER = "router"
"""Its end of a link."""


class Router:
    """Talks to the groups' rank 0, over links that keep the order, each message with a delay of its own."""

    def __init__(self, world: "World", client: Client, heard: Callable[[bytes], None]) -> None:
        self._world = world
        self._client = client
        self._heard = heard
        self._rng = stream(world.seed, "router")
        self._meant: dict[Room, dict[str, Epoch]] = {}  # which incarnations of its groups an attempt is for
        self._rerouting = Rerouting(world.seed, world.groups)

    def submit(
        self,
        work: Work,
        groups: Route,
        remaining_ms: int = PATIENT_MS,
        late_us: Mapping[str, int] = NOBODY_LATE,
        retries: int = 0,
    ) -> None:
        """Send one request to a pair of groups, prefill first, or to one that serves it alone.

        A repeated call sends a duplicate. A hand-over that failed is tried again, up to `retries` times.
        """
        clock = self._world.clock
        self._client.submitted(work, groups, clock.now_us, clock.now_us + 1000 * remaining_ms, retries)
        serving = groups[:1] if work.max_tokens == 1 else groups
        if work.room not in self._meant and not self._begin(work.room, serving):
            self._client.lost(work.room)
            return
        for group in serving:
            peer = next((other for other in serving if other != group), None)
            message = Submit(msgspec.structs.replace(work, peer=peer), remaining_ms)
            if late_us.get(group):
                clock.after(late_us[group], partial(self._submit, group, message))
            else:
                self._submit(group, message)

    def _begin(self, room: Room, serving: Route) -> bool:
        """Whether the groups are there to be sent an attempt."""
        able = self._rerouting.able(serving)
        self._meant[room] = {group: self._world.epoch(group) for group in serving if able}
        return able

    def _submit(self, group: str, message: Submit) -> None:
        """No incarnation gets what was meant for one before it: its connection has ended."""
        if self._meant[message.work.room].get(group) == self._world.epoch(group):
            self.to_group(group, message)

    def cancel(self, work: Work, groups: tuple[str, ...], reason: Reason = Reason.CLIENT_GONE) -> None:
        """The client left: tell those of the groups that serve it now, or all that do where it went on elsewhere."""
        self._client.left(work, reason)
        answer = self._client.answer(work.room)
        for group in [group for group in answer.groups if group in groups] or answer.groups:
            self.to_group(group, Cancel(answer.attempt.room, reason))

    def to_group(self, group: str, message: Submit | Cancel | Control | Knobs) -> None:
        """The router, or an operator through it, speaks to a group's rank 0."""
        if isinstance(message, Control):
            self._rerouting.on_order(group, message.order)
        node = self._world.node(group, LEADER)
        self._world.channel(ROUTER, node.name, "intake").send(lambda: node.on(message))

    def to_client(self, node: "Node", message: Token | Done | Evicted) -> None:
        """A group speaks to the router."""
        group = node.rank.place.group
        self._heard(f"{group} {message}".encode())
        self._world.channel(node.name, ROUTER, "intake").send(partial(self._hear, group, message))

    def _hear(self, group: str, message: Token | Done | Evicted) -> None:
        """A group's word is here: what was evicted or could not be handed over is submitted anew.

        After a failed transfer the groups tell each other: no Cancel hides that.
        """
        again = self._client.on_message(group, message)
        if again is None:
            return
        answer = self._client.answer(again.room)
        if isinstance(message, Evicted):
            for serving in answer.groups:
                self.to_group(serving, Cancel(message.room, Reason.PEER_ENDED))
        self._go_on(again, answer)

    def lost(self, group: str, epoch: Epoch) -> None:
        """An incarnation of a group is gone: all that need it end, and its partners hear of it."""
        self._rerouting.on_lost(group)
        for answer in self._client.needing(group):
            if self._meant[answer.attempt.room].get(group) != epoch:
                continue
            self._world.say(f"r{answer.work.room.rid} needed {group}")
            self._client.lost(answer.work.room)
            for serving in answer.groups:
                self.to_group(serving, Cancel(answer.attempt.room, Reason.GROUP_LOST))

    def back(self, group: str) -> None:
        """Its next incarnation takes requests."""
        self._rerouting.on_back(group)

    def make_up_for(self, lost: Cancelled, group: str) -> None:
        """One group has ended a room, and its word to the other never came. The router hears of it, and cancels."""
        cancel = Cancel(lost.room, Reason.PEER_ENDED)
        self._world.clock.after(between(self._rng, HEARING_US), partial(self.to_group, group, cancel))

    def _go_on(self, work: Work, answer: Answer) -> None:
        """Submit the next attempt, which keeps its place in line, to the same groups or to others."""
        now_us = self._world.clock.now_us
        groups = self._rerouting.after(answer.groups) or answer.groups
        if groups != answer.groups:
            self._world.say(f"r{work.room.rid} goes on with {' and '.join(groups)}")
        aged = msgspec.structs.replace(work, age_ms=(now_us - answer.since_us) // 1000)
        self.submit(aged, groups, max(0, (answer.deadline_us - now_us) // 1000))
