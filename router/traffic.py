"""How full each group is: its last Load, and what this router has sent and heard since. Pure."""

from dataclasses import dataclass, field
from typing import assert_never

from router.placement import Route, prefills
from router.queue import Wish
from tandem.core.config import RoleName
from tandem.core.ids import Room
from tandem.core.inputs import Submit
from tandem.core.members import Member
from tandem.core.messages import Cached, Done, Evicted, Load, Portion, Token, ToRouter
from tandem.core.requests import pages_for

LINE_ROUNDS = 4
"""Prompts in line at a group: so many requests for each stage of its ring keep it busy until more can come..."""
LINE_TICKS = 2
"""... or so many full ticks for each stage, whichever is more: many short prompts share one."""
WAITING_MAX = 8
"""Requests that wait for pages in a group, at most, before it gets no more."""


@dataclass
class _Group:
    """One group, as far as this router has to do with it."""

    page_size: int
    prefills: bool  # it hands its requests over
    load: Load | None = None
    rooms: dict[Room, int] = field(default_factory=dict)  # tokens of what we have there
    line: dict[Room, int] = field(default_factory=dict)  # of these, the prompts that no token has come of
    line_tokens: int = 0
    pages_since: int = 0  # asked for since the last Load
    others: int = 0  # that wait there and are not ours, at the last Load

    def start(self, room: Room) -> bool:
        """Its prompt is computed; False when that was known."""
        tokens = self.line.pop(room, 0)
        self.line_tokens -= tokens
        return tokens > 0


class Traffic:
    """Hears every message to and from the groups go by."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def on_submit(self, head: Member, submit: Submit) -> None:
        """Work was sent to this group."""
        there, room, tokens = self._of(head), submit.work.room, len(submit.work.prompt)
        there.rooms[room] = there.line[room] = tokens
        there.line_tokens += tokens
        there.pages_since += pages_for(tokens + 1, there.page_size)

    def on_message(self, head: Member | None, message: ToRouter) -> bool:
        """A group's word; True when there may be room now that there was not."""
        there = self._groups.get(head.group.name) if head is not None else None
        match message:
            case Load():
                if head is not None:
                    self._on_load(head, message)
                return True
            case Cached():
                return False
            case Token(room=room) | Portion(room=room) if there is not None and not there.prefills:
                return there.start(room)
            case Token(room=room) | Portion(room=room) | Done(room=room) | Evicted(room=room):
                return head is not None and self.on_end(head.group.name, room)
            case _:
                assert_never(message)

    def on_end(self, group: str, room: Room) -> bool:
        """The group has nothing of this room any more, or soon: it has handed it over, or a Cancel was sent."""
        there = self._groups.get(group)
        if there is None or room not in there.rooms:
            return False
        there.start(room)
        there.pages_since -= pages_for(there.rooms.pop(room) + 1, there.page_size)
        return True

    def forget(self, group: str) -> None:
        """It is gone, or another one now."""
        self._groups.pop(group, None)

    def has_room(self, route: Route, wish: Wish) -> bool:
        """Whether every group of the route can begin the request soon."""
        return all(self._takes(head, wish) for head in route.heads)

    def _on_load(self, head: Member, load: Load) -> None:
        """What the group says of itself is newer than what we have reckoned."""
        there = self._of(head)
        there.load, there.pages_since = load, 0
        there.others = max(0, load.waiting - len(there.line))

    def _takes(self, head: Member, wish: Wish) -> bool:
        there = self._groups.get(head.group.name)
        if there is None or there.load is None or not (there.rooms or there.load.waiting or there.load.running):
            return True  # whoever has nothing gets whatever there is
        limits, load = head.limits, there.load
        if load.waiting >= WAITING_MAX and not there.prefills:
            return False
        if len(there.rooms) + wish.choices > limits.max_rooms:
            return False
        pages = pages_for(wish.tokens + wish.choices, limits.page_size)
        if load.free_pages - there.pages_since < pages:
            return False
        return head.group.role is RoleName.DECODE or _line_is_short(there, head)

    def _of(self, head: Member) -> _Group:
        known = self._groups.get(head.group.name)
        if known is None:
            known = self._groups[head.group.name] = _Group(head.limits.page_size, prefills(head))
        return known


def _line_is_short(there: _Group, head: Member) -> bool:
    """Of prompts at whoever computes them."""
    stages, limits = head.group.size, head.limits
    requests = len(there.line) + there.others
    tokens = there.line_tokens + there.others * limits.chunked_prefill_size
    return requests < LINE_ROUNDS * stages or tokens < LINE_TICKS * stages * limits.max_prefill_tokens
