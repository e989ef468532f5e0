"""The groups as they are now: what the router knows of them, and what their ranks say."""

from collections.abc import Mapping, Sequence

from router.breakers import BreakerState
from router.dashboard.book import Book, Edge
from router.dashboard.looks import Look
from router.dashboard.words import EdgeNow, GroupNow, HeldNow, PagesNow, RankNow
from router.dispatch import Dispatch
from router.membership import State, Watched
from router.ranks import RankState
from tandem.core.commands import rank_name
from tandem.core.config import QUIESCE_MS, RoleName
from tandem.core.ids import LEADER, RankId
from tandem.runtime.history import HeldRoom

NOT_REGISTERED = "it is not registered"
NOT_ASKED = "it was not asked yet"


def groups_now(dispatch: Dispatch, looks: Mapping[str, Look], now: float) -> list[GroupNow]:
    """By name."""
    return [_group(dispatch, watched, looks, now) for watched in dispatch.membership.groups()]


def _group(dispatch: Dispatch, watched: Watched, looks: Mapping[str, Look], now: float) -> GroupNow:
    state, load = dispatch.membership.state(watched), watched.load
    ranks = [_rank(watched, rank, looks, now) for rank in map(RankId, range(watched.group.size))]
    newest = max((rank.tick for rank in ranks if rank.tick is not None), default=0)
    for rank in ranks:
        rank.lag = None if rank.tick is None else newest - rank.tick
    says = [said for rank in ranks if (said := _ready(looks.get(rank.name))) is not None]
    return GroupNow(
        name=watched.group.name,
        role=watched.group.role.value,
        state=state.name.lower(),
        cause="" if state is State.USABLE else watched.cause or f"it {state.value}",
        size=watched.group.size,
        layers=sum(watched.group.partition),
        open=dispatch.requests.on_group(watched.group.name),
        ranks=ranks,
        fingerprint=watched.head.fingerprint if watched.head is not None else "",
        heard_s_ago=None if watched.heard is None else round(max(0.0, now - watched.heard), 1),
        paused=load.paused if load is not None else False,
        waiting=load.waiting if load is not None else None,
        running=load.running if load is not None else None,
        pages=_pages(says[0]) if says else None,
    )


def _ready(look: Look | None) -> RankState | None:
    """What a rank says whose ring has formed."""
    return look.state if look is not None and look.state is not None and look.state.ready else None


def _pages(state: RankState) -> PagesNow:
    names = ("total", "free", "owned", "cached", "quarantined")
    return PagesNow(*(state.pages.get(name, 0) for name in names))


def _rank(watched: Watched, rank: RankId, looks: Mapping[str, Look], now: float) -> RankNow:
    name = rank_name(watched.group, rank)
    member = watched.ranks.get(rank)
    if member is None:
        return RankNow(name, cause=NOT_REGISTERED)
    told = RankNow(name, member.http, str(member.epoch), member.engine, last_end=member.last_end)
    look = looks.get(name)
    if look is None:
        told.cause = NOT_ASKED
        return told
    told.asked_s_ago = round(max(0.0, now - look.at), 1)
    state = look.state
    if state is None:
        told.cause = look.why
        return told
    told.ready = state.ready
    told.cause = "" if state.ready else f"it waits for {state.waiting_for}"
    told.last_end = state.last_end or told.last_end
    told.tick, told.in_flight = state.tick, state.ticks_in_flight
    told.awaiting, told.degraded = state.awaiting or "", state.degraded or ""
    return told


def edges_now(dispatch: Dispatch, book: Book, now: float) -> list[EdgeNow]:
    """Those that have something to tell: traffic, failures, or a breaker that has seen some."""
    rates, failures = book.rates(now), book.failures()
    every = dispatch.membership.groups()
    senders = [watched.group.name for watched in every if watched.group.role is RoleName.PREFILL]
    receivers = [watched.group.name for watched in every if watched.group.role is RoleName.DECODE]
    found = (_edge(dispatch, (sender, receiver), rates, failures) for sender in senders for receiver in receivers)
    return [edge for edge in found if edge.bytes_per_s or edge.failures or edge.breaker_failures]


def _edge(dispatch: Dispatch, edge: Edge, rates: Mapping[Edge, float], failures: Mapping[Edge, int]) -> EdgeNow:
    """Its breaker is that of the edge or of one of its groups, whichever is worse."""
    keys = (edge, edge[:1], edge[1:])
    states = [dispatch.breakers.state(key) for key in keys]
    worst = next((state for state in (BreakerState.OPEN, BreakerState.TRIAL) if state in states), BreakerState.CLOSED)
    return EdgeNow(
        *edge,
        bytes_per_s=round(rates.get(edge, 0.0), 1),
        failures=failures.get(edge, 0),
        breaker=worst.value,
        breaker_failures=max(dispatch.breakers.failures(key) for key in keys),
    )


def held_now(groups: Sequence[Watched], looks: Mapping[str, Look]) -> list[HeldNow]:
    """Pages held for peers, longest first: rank 0 of each group has them."""
    rooms: list[HeldNow] = []
    for watched in groups:
        look = looks.get(rank_name(watched.group, LEADER))
        if look is None or look.state is None:
            continue
        quiesce_ms = watched.head.limits.quiesce_ms if watched.head is not None else QUIESCE_MS
        rooms += [_held(room, quiesce_ms) for room in look.state.held]
    return sorted(rooms, key=lambda room: room.age_ms, reverse=True)


def _held(room: HeldRoom, quiesce_ms: int) -> HeldNow:
    return HeldNow(room.group, room.room, room.peer, room.pages, room.age_ms, room.age_ms > quiesce_ms)
