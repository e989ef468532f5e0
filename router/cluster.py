"""The whole cluster at this moment, with what every rank tells of itself: GET /cluster."""

from collections.abc import Mapping

import msgspec

from router.errors import shutting_down
from router.membership import State, Watched
from router.ranks import Heard, RankState, ask_all, check_name, read
from router.service import Service
from tandem.core.commands import rank_name
from tandem.core.ids import RankId
from tandem.runtime.overview import ClusterView, GroupView, RankView, RouterView

ANSWER_S = 2.0
"""A rank must answer within this time to be heard; multiplied by the timer scale."""
PAUSED = "is paused by an operator: it works on nothing until `tandem control resume`"


async def cluster_view(service: Service) -> ClusterView:
    """Ranks that do not answer are in it, with why."""
    groups = service.membership.groups()
    addresses = {rank_name(each.group, rank): one.http for each in groups for rank, one in each.ranks.items()}
    heard, silent = await ask_all(addresses, "/state", ANSWER_S * service.rules.timer_scale)
    return ClusterView(_router(service), [_group(service, each, heard, silent) for each in groups])


def _router(service: Service) -> RouterView:
    registry = service.metrics.registry
    state = "draining" if service.draining else "ready" if service.ready() else "not ready"
    cause = {"draining": shutting_down().message, "ready": ""}.get(state)
    return RouterView(
        state=state,
        cause=service.why_not_ready().message if cause is None else cause,
        open=len(service.requests),
        admitted=service.admitted,
        queued=len(service.turns.queue),
        migrated=service.requests.migrated,
        registry_up=registry.up,
        registry_stale_s=round(registry.stale_s, 3),
    )


def _group(service: Service, watched: Watched, heard: Mapping[str, Heard], silent: Mapping[str, str]) -> GroupView:
    group, state = watched.group, service.membership.state(watched)
    ranks = [_rank(watched, rank, heard, silent) for rank in map(RankId, range(group.size))]
    return GroupView(
        name=group.name,
        role=group.role.value,
        state=state.name.lower(),
        cause=" and ".join(filter(None, (cause_of(watched, state), PAUSED if ranks[0].paused else ""))),
        layers=list(group.partition),
        open=service.requests.on_group(group.name),
        ranks=ranks,
    )


def cause_of(watched: Watched, state: State) -> str:
    """What completes the sentence `group p0 ...`; nothing of one that takes requests."""
    if state is State.USABLE:
        return ""
    return f"{state.value}: {watched.cause}" if state in (State.LOST, State.SILENT) else state.value


def _rank(watched: Watched, rank: RankId, heard: Mapping[str, Heard], silent: Mapping[str, str]) -> RankView:
    name, member = rank_name(watched.group, rank), watched.ranks.get(rank)
    if member is None:
        return RankView(rank, silent="it is not registered")
    view = RankView(rank, member.http, member.host.partition("/")[0])
    if name not in heard:
        view.silent = silent.get(name, "it was not asked")
        return view
    try:
        told = read(heard[name], RankState)
        check_name(f"{told.group}.{told.rank}", name)
    except ValueError as error:
        view.silent = str(error)
        return view
    return merged(view, told)


def merged(view: RankView, told: RankState) -> RankView:
    """With what the rank has said."""
    known = {name: value for name in RankView.__struct_fields__ if (value := getattr(told, name, None)) is not None}
    return msgspec.structs.replace(view, **known, held_pages=sum(room.pages for room in told.held))
