"""Pages of ended requests that groups hold for each other: GET /held."""

from collections.abc import Sequence

from router.errors import no_peer
from router.membership import Watched
from router.ranks import Heard, RankState, ask_all, read
from tandem.core.config import RoleName
from tandem.core.ids import LEADER
from tandem.runtime.history import HeldPages, HeldRoom

ANSWER_S = 1.0
"""A group's rank 0 must answer within this time; multiplied by the timer scale."""

PEERS = {RoleName.PREFILL: RoleName.DECODE, RoleName.DECODE: RoleName.PREFILL}


async def held_pages(groups: Sequence[Watched], scale: float) -> HeldPages:
    """Longest first, over all groups; and why some could not be asked."""
    addresses = {each.group.name: each.ranks[LEADER].http for each in groups if LEADER in each.ranks}
    missing = {each.group.name: "its rank 0 is not registered" for each in groups if LEADER not in each.ranks}
    heard, silent = await ask_all(addresses, "/state", ANSWER_S * scale)
    rooms: list[HeldRoom] = []
    for name, answer in heard.items():
        try:
            rooms += held_of(answer)
        except ValueError as error:
            silent[name] = str(error)
    rooms.sort(key=lambda room: room.age_ms, reverse=True)
    return HeldPages(rooms, {**missing, **silent})


async def check_peer(groups: Sequence[Watched], group: str, peer: str, scale: float) -> None:
    """Raises ApiError 404 for a release that could free nothing: no such peer group, and no page held for one.

    A peer group may be gone while its pages are held. Who cannot be asked what it holds is believed.
    """
    roles = {each.group.name: each.group.role for each in groups}
    if peer in roles:
        if roles[peer] is not PEERS.get(roles[group]):
            raise no_peer(group, peer)
        return
    held = await held_pages([each for each in groups if each.group.name == group], scale)
    if group not in held.silent and all(room.peer != peer for room in held.rooms):
        raise no_peer(group, peer)


def held_of(heard: Heard) -> list[HeldRoom]:
    """Raises ValueError that says why the answer tells of no pages."""
    state = read(heard, RankState)
    if not state.ready:
        raise ValueError(f"it is not ready: waiting for {state.waiting_for}")
    return state.held
