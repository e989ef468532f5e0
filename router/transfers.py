"""What the ranks remember of a request's way through them, put together: GET /transfers and /transfers/ID."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from router.errors import no_request_id, unknown_request
from router.membership import Watched
from router.pieces import Clock, by_room, groups_of, piece_of, summary, whole
from router.ranks import Heard, ask_all, check_name, read
from tandem.core.commands import rank_name
from tandem.core.ids import RankId
from tandem.runtime.history import Outlines, Rank, Summary, Tracks, Transfer, Transfers

ANSWER_S = 1.0
"""A rank must answer within this time to be heard; multiplied by the timer scale."""
NEWEST = 256
"""Attempts in an overview."""
REQUEST_ID = re.compile(r"(?:chatcmpl-|cmpl-)?([0-9a-f]{16})(?:\.([1-9][0-9]{0,5}))?")
"""An x-request-id, the id of an answer, or what logs say: the id with an attempt."""

R = TypeVar("R", bound=Rank)

Failure = Callable[[str], str]
"""The error that a request's client was told, by the request's id; empty if none is known."""


async def overview(groups: Sequence[Watched], scale: float, failure: Failure) -> Transfers:
    """The newest attempts that any rank remembers."""
    told, silent = await _ask(groups, "/timelines", scale, Outlines)
    pieces = [piece_of(one, clock, outline) for one, clock in told for outline in one.rooms]
    found = [summary(room, about, groups) for room, about in by_room(pieces).items()]
    say_why(found, failure)
    found.sort(key=lambda each: each.began_us, reverse=True)
    return Transfers(found[:NEWEST], silent)


async def detail(
    groups: Sequence[Watched], text: str, scale: float, failure: Failure = lambda request_id: ""
) -> Transfer:
    """All that is known of one request. Raises ApiError 400 and 404."""
    rid, attempt = parse(text)
    told, silent = await _ask(groups, f"/timelines/{rid}", scale, Tracks)
    pieces = [piece_of(one, clock, track) for one, clock in told for track in one.rooms]
    rooms = {room: about for room, about in by_room(pieces).items() if attempt in (None, room[1])}
    if not rooms:
        raise unknown_request(text, silent)
    concerned = {name for about in rooms.values() for name in groups_of(about).values()}
    silent = {name: why for name, why in silent.items() if name.rpartition(".")[0] in concerned}
    attempts = [whole(room, rooms[room], groups) for room in sorted(rooms)]
    say_why((one.summary for one in attempts), failure)
    return Transfer(rid, attempts, silent)


def say_why(found: Iterable[Summary], failure: Failure) -> None:
    """The last attempt of a request that failed has the end that its client was told, if its ranks died with theirs."""
    last: dict[str, Summary] = {}
    for one in found:
        last[one.id] = max(one, last.get(one.id, one), key=lambda each: each.attempt)
    for one in last.values():
        one.reason = one.reason or failure(one.id)


def parse(text: str) -> tuple[str, int | None]:
    """What a client has in its hands as request id and attempt. Raises ApiError 400."""
    found = REQUEST_ID.fullmatch(text.strip().lower())
    if found is None:
        raise no_request_id(text)
    return found[1], None if found[2] is None else int(found[2])


async def _ask(
    groups: Iterable[Watched], path: str, scale: float, kind: type[R]
) -> tuple[list[tuple[R, Clock]], dict[str, str]]:
    """What every rank tells, and why some do not."""
    addresses: dict[str, str] = {}
    missing: dict[str, str] = {}
    for watched in groups:
        for rank in map(RankId, range(watched.group.size)):
            member = watched.ranks.get(rank)
            if member is None:
                missing[rank_name(watched.group, rank)] = "it is not registered"
            else:
                addresses[rank_name(watched.group, rank)] = member.http
    heard, silent = await ask_all(addresses, path, ANSWER_S * scale)
    told = []
    for name, answer in heard.items():
        if answer.status == 404:  # it does not know the request
            continue
        try:
            told.append(_read(name, answer, kind))
        except ValueError as error:
            silent[name] = str(error)
    return told, {**missing, **silent}


def _read(name: str, heard: Heard, kind: type[R]) -> tuple[R, Clock]:
    """Raises ValueError for what this rank would not say."""
    one = read(heard, kind)
    check_name(one.name, name)
    middle_us = (heard.asked_us + heard.heard_us) // 2
    return one, Clock(one.now_us - middle_us, (heard.heard_us - heard.asked_us + 1) // 2)
