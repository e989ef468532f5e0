"""Which groups can take requests: what the registry says, what the groups say, and what their supervisor says."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.core.config import Group, RoleName
from tandem.core.ids import LEADER, RankId
from tandem.core.inputs import Order
from tandem.core.members import Member
from tandem.core.messages import SILENT_S, WATCH_S, Load

REMEMBERED_S = 600.0
"""For so long a group that has gone is still listed."""
NAP_S = 2 * WATCH_S
"""A router that did not look at its clock for this long was asleep itself and accuses nobody of silence."""


class State(enum.Enum):
    """What keeps a group from taking requests; its text completes the sentence `group p0 ...`."""

    MISSING = "has ranks missing"
    FORMING = "is forming its ring"
    OTHER_MODEL = "serves another model"
    CONNECTING = "was not heard yet"
    DRAINING = "is draining"
    USABLE = "is usable"
    SILENT = "is silent"
    LOST = "was lost"


@dataclass(frozen=True)
class Connect:
    """Talk to this group's rank 0 at this address from now on."""

    group: str
    address: str


@dataclass(frozen=True)
class Lost:
    """Every open request on this group has to go on elsewhere."""

    group: str
    cause: str
    crashed: bool = True  # as far as is known, nobody had told it to end


@dataclass(frozen=True)
class Drop:
    """This group is gone: close its connection."""

    group: str


Change = Connect | Lost | Drop
_Identity = tuple[int, int, str]  # incarnation, epoch and intake of rank 0


@dataclass
class Watched:
    """One group as this router knows it."""

    group: Group
    ranks: dict[RankId, Member] = field(default_factory=dict)  # as the registry shows them, or last showed them
    speaker: Member | None = None  # the rank 0 that we are connected to
    heard: float | None = None  # when that one last sent a Load
    silent: str = ""  # why nobody believes that it still works, until it is heard again
    lost: str | None = None  # the cause, until another incarnation or epoch shows up
    load: Load | None = None
    drained: bool = False  # we told it to drain, and it has not shown it yet
    gone: float | None = None  # since when nothing of it is known but its name

    @property
    def head(self) -> Member | None:
        return self.ranks.get(LEADER)

    @property
    def identity(self) -> _Identity | None:
        """Of whom we are connected to."""
        return identity_of(self.speaker) if self.speaker is not None else None

    @property
    def cause(self) -> str:
        """Why it was lost or is silent."""
        return self.lost or self.silent

    @property
    def draining(self) -> bool:
        """It takes nothing new: it has said so, or was told by us."""
        return self.drained or (self.load is not None and self.load.draining)

    @property
    def trusted(self) -> bool:
        """Open requests may be on it."""
        return self.heard is not None and not self.silent and self.lost is None


class Membership:
    """Pure: time is an argument, and what has to be done about a change is returned."""

    def __init__(self, model: str, timer_scale: float = 1.0) -> None:
        self._model = model
        self._silent_s = SILENT_S * timer_scale
        self._nap_s = NAP_S * timer_scale
        self._groups: dict[str, Watched] = {}
        self._looked: float | None = None
        self._usable: list[Member] | None = None  # until something changes

    def on_members(self, members: Iterable[Member], now: float) -> list[Change]:
        """What the registry shows. It may have forgotten what it knew, or remember what was: who talks is believed."""
        self._usable = None
        shown: dict[str, dict[RankId, Member]] = {}
        # The newest entry of a rank wins: its predecessor's lease may not have run out yet.
        for member in sorted(members, key=lambda member: member.boot_ms):
            shown.setdefault(member.group.name, {})[member.rank] = member
        for name, ranks in shown.items():
            self._groups.setdefault(name, Watched(next(iter(ranks.values())).group))
        changes = self.on_time(now)
        for name, watched in list(self._groups.items()):
            self._show(watched, shown.get(name, {}))
            changes += self._follow(watched)
            if watched.ranks or watched.trusted:
                watched.gone = None
            elif watched.gone is None:
                self._leave(watched, now)
                changes.append(Drop(name))
            elif now - watched.gone > REMEMBERED_S:
                del self._groups[name]
        return changes

    def _leave(self, watched: Watched, now: float) -> None:
        """None of its ranks is registered any more. Operators still see it, and why, for a while."""
        watched.gone = now
        watched.speaker, watched.heard, watched.load, watched.silent = None, None, None, ""
        watched.lost = watched.lost or "none of its ranks is registered any more"

    def on_time(self, now: float) -> list[Change]:
        """Declares silent groups lost. Call it about once a second."""
        self._usable = None
        nap = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        changes: list[Change] = []
        for name, watched in self._groups.items():
            if watched.heard is None or not watched.trusted:
                continue
            if nap > self._nap_s:
                watched.heard = min(now, watched.heard + nap)
            if now - watched.heard > self._silent_s:
                watched.silent = f"no sign of life for {self._silent_s:g} s"
                changes.append(Lost(name, watched.silent, not watched.draining))
        return changes

    def on_load(self, group: str, now: float, load: Load) -> None:
        """A group's sign of life."""
        self._usable = None
        watched = self._groups.get(group)
        if watched is not None and watched.identity is not None:
            watched.heard, watched.silent, watched.load = now, "", load
            watched.drained &= not load.draining  # from here on it speaks for itself

    def on_order(self, group: str, order: Order) -> None:
        """This router has told a group to drain, or to take requests again."""
        self._usable = None
        if order in (Order.DRAIN, Order.RESUME):
            self._groups[group].drained = order is Order.DRAIN

    def on_lost(self, group: str, cause: str, *, crashed: bool = True) -> list[Change]:
        """Somebody who knows says so. It stays lost until the registry shows another incarnation or epoch of it.

        A silent one was lost before: only its cause is better known now.
        """
        self._usable = None
        watched = self._groups.get(group)
        if watched is None or watched.lost is not None:
            return []
        watched.lost = cause
        return [] if watched.silent else [Lost(group, cause, crashed and not watched.draining)]

    def on_hang_up(self, group: str) -> list[Change]:
        """The connection to a group broke, so what it still says about its requests cannot reach us.

        It may be alive: it is usable again when it is heard again.
        """
        self._usable = None
        watched = self._groups.get(group)
        if watched is None or not watched.trusted:
            return []
        watched.silent = "its rank 0 hung up"
        return [Lost(group, watched.silent, not watched.draining)]

    def unexplained(self, group: str) -> bool:
        """Whether it was lost because it is silent, and nobody has said yet what became of it."""
        watched = self._groups.get(group)
        return watched is not None and bool(watched.silent) and watched.lost is None

    def talks(self, group: str) -> bool:
        """Whether what this group is told is likely to arrive."""
        watched = self._groups.get(group)
        return watched is not None and watched.trusted

    def head(self, group: str) -> Member | None:
        """Rank 0 of this group, as far as it is known."""
        watched = self._groups.get(group)
        return watched.head if watched is not None else None

    def usable(self) -> list[Member]:
        """Rank 0 of every group that can take requests; the same list as before while nothing has changed."""
        if self._usable is None:
            self._usable = self._heads(State.USABLE)
        return self._usable

    def serving(self) -> list[Member]:
        """The same, and of those that only finish what they have begun."""
        return self._heads(State.USABLE, State.DRAINING)

    def _heads(self, *states: State) -> list[Member]:
        every = self._groups.values()
        return [watched.head for watched in every if watched.head is not None and self.state(watched) in states]

    def groups(self) -> list[Watched]:
        """Everything known, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def state(self, watched: Watched) -> State:
        """The first thing that keeps this group from taking requests."""
        head = watched.head
        if watched.lost is not None:
            return State.LOST
        if head is None or len(watched.ranks) < watched.group.size:
            return State.MISSING
        if head.model != self._model:
            return State.OTHER_MODEL
        if watched.identity is None or head.epoch == 0:
            return State.FORMING
        if watched.silent:
            return State.SILENT
        if watched.load is None:
            return State.CONNECTING
        return State.DRAINING if watched.draining else State.USABLE

    def why_none(self) -> tuple[str, str]:
        """Error code and sentence for a moment in which there is no route for a request."""
        alone = [watched for watched in self.groups() if watched.group.role is RoleName.COLOCATED]
        pairs = [watched for watched in self.groups() if watched.group.role is not RoleName.COLOCATED]
        if alone and not pairs:
            return self._no_usable(RoleName.COLOCATED, alone, [])
        for role in (RoleName.PREFILL, RoleName.DECODE):
            groups = [watched for watched in pairs if watched.group.role is role]
            if not any(self.state(watched) is State.USABLE for watched in groups):
                return self._no_usable(role, groups, alone)
        prints = ", ".join(f"{head.group.name} has {head.fingerprint} (engine {head.engine})" for head in self.usable())
        return "incompatible_pair", f"no prefill and decode group have equal fingerprints: {prints}"

    def _no_usable(self, role: RoleName, groups: list[Watched], alone: list[Watched]) -> tuple[str, str]:
        """No group of this role is usable, nor one of those that need no other."""
        states = [self.state(watched) for watched in (*groups, *alone)]
        code = "draining" if groups and all(state is State.DRAINING for state in states) else f"no_{role.value}"
        told = [f"{watched.group.name} {self.state(watched).value}" for watched in groups] or ["none is registered"]
        told += [f"{watched.group.name} {self.state(watched).value}" for watched in alone]
        return code, f"no {role.value} group is usable: {'; '.join(told)}"

    def _show(self, watched: Watched, shown: dict[RankId, Member]) -> None:
        """Of a group that talks, nothing is forgotten, and nothing older is believed than itself."""
        head = shown.get(LEADER)
        if watched.trusted and watched.speaker is not None:
            if head is not None and is_older(head, watched.speaker):
                return
            shown = {**watched.ranks, **shown}
        watched.ranks = shown
        for member in shown.values():
            watched.group = member.group

    def _follow(self, watched: Watched) -> list[Change]:
        """Connect to a rank 0 that is new, or new again."""
        head = watched.head
        if head is None or not head.intake or head.epoch == 0 or head.model != self._model:
            return []
        if identity_of(head) == watched.identity:
            return []
        name, was_trusted, crashed = watched.group.name, watched.trusted, not watched.draining
        watched.speaker, watched.heard, watched.load, watched.silent, watched.lost = head, None, None, "", None
        watched.drained = False
        changes: list[Change] = [Lost(name, f"it started over as epoch {head.epoch}", crashed)] if was_trusted else []
        return [*changes, Connect(name, head.intake)]


def identity_of(head: Member) -> _Identity:
    """What is another one when a group has started over."""
    return head.incarnation, int(head.epoch), head.intake


def is_older(shown: Member, speaker: Member) -> bool:
    """Whether an entry of rank 0 is of a time before the one that speaks to us: the registry remembers what was."""
    if shown.incarnation == speaker.incarnation:
        return shown.epoch < speaker.epoch
    return shown.boot_ms < speaker.boot_ms or 0 < shown.epoch < speaker.epoch
