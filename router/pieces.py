"""One attempt of a request as all ranks tell of it, put together. Pure: what was asked of whom is over."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from router.membership import Watched
from tandem.core.config import RoleName
from tandem.runtime.history import Attempt, Entry, Happened, Outline, Rank, Summary, Track, What, Witnessed

EARLY = (What.SUBMITTED, What.GRANTED)
"""States of a request on decode, of which prefill knows more."""


@dataclass(frozen=True)
class Clock:
    """How far a rank's clock is ahead of ours. What it says of the time may be wrong by half of what it took to ask."""

    offset_us: int
    within_us: int

    @property
    def shift_us(self) -> int:
        """What to add to its times; 0 where both clocks may as well be the same."""
        return -self.offset_us if abs(self.offset_us) > self.within_us else 0


@dataclass(frozen=True)
class Piece:
    """One room on one rank, with its times by our clock."""

    told_by: Rank
    clock: Clock
    outline: Outline
    entries: Sequence[Entry] = ()  # none in an overview
    dropped: int = 0

    def at(self, what: What) -> int | None:
        """When it first happened."""
        return self.outline.marks.get(what)


Room = tuple[str, int]
"""Request id and attempt."""


def by_room(pieces: Iterable[Piece]) -> dict[Room, list[Piece]]:
    """What is about the same attempt."""
    rooms: dict[Room, list[Piece]] = {}
    for piece in pieces:
        rooms.setdefault((piece.outline.rid, piece.outline.attempt), []).append(piece)
    return rooms


def piece_of(one: Rank, clock: Clock, told: Outline | Track) -> Piece:
    """What a rank tells of a room, with its times by our clock."""
    by_us = clock.shift_us
    if isinstance(told, Outline):
        return Piece(one, clock, shifted_outline(told, by_us))
    entries = [shifted(entry, by_us) for entry in told.entries]
    return Piece(one, clock, shifted_outline(told.outline, by_us), entries, told.dropped)


def shifted(entry: Entry, by_us: int) -> Entry:
    """All of its times later; what has not happened has none."""
    times = {name: getattr(entry, name) for name in entry.__struct_fields__ if name.endswith("_us")}
    return msgspec.structs.replace(entry, **{name: at_us + by_us for name, at_us in times.items() if at_us})


def shifted_outline(outline: Outline, by_us: int) -> Outline:
    """The same for an outline; its sums are no times."""
    return msgspec.structs.replace(outline, marks={what: at_us + by_us for what, at_us in outline.marks.items()})


def lead(pieces: Iterable[Piece], *roles: RoleName) -> Piece | None:
    """What the lowest of the ranks that answered says for its group."""
    of_role = [piece for piece in pieces if piece.told_by.role in [role.value for role in roles]]
    return min(of_role, key=lambda piece: piece.told_by.rank, default=None)


def groups_of(pieces: Iterable[Piece]) -> dict[str, str]:
    """Names by role, also of a group none of whose ranks has answered."""
    other = {RoleName.PREFILL.value: RoleName.DECODE.value, RoleName.DECODE.value: RoleName.PREFILL.value}
    groups: dict[str, str] = {}
    for piece in pieces:
        role, peer = piece.told_by.role, piece.outline.peer
        groups[role] = piece.told_by.group
        if peer is not None and role in other:
            groups[other[role]] = peer
    return {role.value: groups[role.value] for role in RoleName if role.value in groups}


# one attempt


def whole(room: Room, pieces: Sequence[Piece], groups: Sequence[Watched]) -> Attempt:
    """All of it."""
    ranks = [
        Witnessed(
            piece.told_by.name,
            piece.told_by.role,
            piece.clock.offset_us,
            piece.clock.within_us,
            piece.clock.shift_us != 0,
            piece.outline,
            piece.dropped,
        )
        for piece in pieces
    ]
    events = [Happened(piece.told_by.name, entry) for piece in pieces for entry in piece.entries]
    return Attempt(summary(room, pieces, groups), ranks, sorted(events, key=lambda event: event.entry.at_us))


def summary(room: Room, pieces: Sequence[Piece], groups: Sequence[Watched]) -> Summary:
    """In short."""
    first, last = lead(pieces, RoleName.PREFILL, RoleName.COLOCATED), lead(pieces, RoleName.DECODE)
    names = groups_of(pieces)
    outlines = [piece.outline for piece in pieces]
    senders = [piece.outline for piece in pieces if piece.told_by.role == RoleName.PREFILL.value]
    says = next(piece.outline for piece in (last, first) if piece is not None)
    knows = first.outline if first is not None and says.state in EARLY else says
    return Summary(
        id=room[0],
        attempt=room[1],
        groups=names,
        state=knows.state.value,
        reason=next((outline.reason for outline in (says, *outlines) if outline.reason), ""),
        prompt_tokens=max(outline.prompt_tokens for outline in outlines),
        tokens=says.tokens,
        layers=(sum(outline.layers for outline in senders), layers_of(names, groups)),
        bytes=sum(outline.bytes for outline in senders),
        began_us=min((at_us for outline in outlines for at_us in outline.marks.values()), default=0),
        phases_ms=phases_ms(first, last, senders),
    )


def layers_of(names: dict[str, str], groups: Sequence[Watched]) -> int:
    """Layers that are handed over; none unless a pair serves the request."""
    if len(names) < 2:
        return 0
    return next((sum(watched.group.partition) for watched in groups if watched.group.name in names.values()), 0)


def phases_ms(first: Piece | None, last: Piece | None, senders: Sequence[Outline]) -> dict[str, float]:
    """See Summary; those that are not over are left out."""
    alone = first is not None and first.outline.peer is None  # there is nothing to wait for but pages
    begun = earliest(first, What.SUBMITTED if alone else What.BOOTSTRAPPED)
    ended = earliest(last or first, What.ENDED)
    spans = {
        "alloc": (earliest(last, What.SUBMITTED), earliest(last, What.GRANTED)),
        "bootstrap": (earliest(last, What.GRANTED), earliest(first, What.BOOTSTRAPPED)),
        "admit": (begun, earliest(first, What.COMPUTING)),
        "compute": (earliest(first, What.COMPUTING), earliest(first, What.FIRST_TOKEN)),
        "exposed": (earliest(first, What.FIRST_TOKEN), earliest(last, What.TRANSFERRED, What.DECODING)),
        "decode": (earliest(last, What.DECODING) if last else earliest(first, What.FIRST_TOKEN), ended),
    }
    phases = {
        name: round(max(0, to_us - from_us) / 1000, 3)
        for name, (from_us, to_us) in spans.items()
        if from_us is not None and to_us is not None
    }
    writes = sum(outline.writes for outline in senders)
    for name in ("queue", "post", "wire", "commit") if writes else ():
        phases[name] = round(sum(getattr(outline, f"{name}_us") for outline in senders) / writes / 1000, 3)
    return phases


def earliest(piece: Piece | None, *whats: What) -> int | None:
    """When the first of these that is known first happened."""
    times = (piece.at(what) for what in whats) if piece is not None else ()
    return next((at_us for at_us in times if at_us is not None), None)
