"""Pages of ended requests that groups hold for each other: GET /held."""

from collections.abc import Sequence

import msgspec

from router.membership import Watched
from router.ranks import Heard, ask_all
from tandem.core.ids import LEADER
from tandem.runtime.history import HeldPages, HeldRoom

ANSWER_S = 1.0
"""A group's rank 0 must answer within this time; multiplied by the timer scale."""


class State(msgspec.Struct):
    """The part of a rank's /state that is about them."""

    ready: bool
    held: list[HeldRoom] = []
    waiting_for: str = ""


async def held_pages(groups: Sequence[Watched], scale: float) -> HeldPages:
    """Longest first, over all groups; and why some could not be asked."""
    addresses = {each.group.name: each.ranks[LEADER].http for each in groups if LEADER in each.ranks}
    missing = {each.group.name: "its rank 0 is not registered" for each in groups if LEADER not in each.ranks}
    heard, silent = await ask_all(addresses, "/state", ANSWER_S * scale)
    rooms: list[HeldRoom] = []
    for name, answer in heard.items():
        try:
            rooms += read(answer)
        except ValueError as error:
            silent[name] = str(error)
    rooms.sort(key=lambda room: room.age_ms, reverse=True)
    return HeldPages(rooms, {**missing, **silent})


def read(heard: Heard) -> list[HeldRoom]:
    """Raises ValueError that says why the answer tells of no pages."""
    if heard.status != 200:
        raise ValueError(f"it answers with status {heard.status}")
    try:
        state = msgspec.json.decode(heard.body, type=State)
    except msgspec.DecodeError as error:
        raise ValueError(f"it answers with what cannot be read: {error}") from None
    if not state.ready:
        raise ValueError(f"it is not ready: waiting for {state.waiting_for}")
    return state.held
