"""What GET /workers tells of the known groups."""

from router.breakers import Breaker, named
from router.dispatch import Dispatch
from router.membership import State, Watched


def known_groups(dispatch: Dispatch, now: float) -> list[dict[str, object]]:
    """By name. `now` is the time of the dispatch's clock."""
    return [_told(dispatch, watched, now) for watched in dispatch.membership.groups()]


def _told(dispatch: Dispatch, watched: Watched, now: float) -> dict[str, object]:
    name, load = watched.group.name, watched.load
    state = dispatch.membership.state(watched)
    return {
        "name": name,
        "role": watched.group.role.value,
        "state": state.name.lower(),
        "usable": state is State.USABLE,
        "paused": load.paused if load else None,
        "cause": watched.cause or None,
        "size": watched.group.size,
        "members": [
            {
                "rank": rank,
                "host": member.host,
                "http": member.http,
                "epoch": member.epoch,
                "engine": member.engine,
                "engine_why": member.engine_why,
                "engine_fallback": member.engine_fallback,
            }
            for rank, member in sorted(watched.ranks.items())
        ],
        "fingerprint": watched.head.fingerprint if watched.head else None,
        "open": dispatch.requests.on_group(name),
        "heard_s_ago": None if watched.heard is None else round(now - watched.heard, 3),
        "waiting": load.waiting if load else None,
        "running": load.running if load else None,
        "free_pages": load.free_pages if load else None,
        **standing(dispatch, name),
    }


def standing(dispatch: Dispatch, group: str) -> dict[str, object]:
    """How much is known of a group's prefix cache, and its breakers that have seen a failure lately."""
    return {
        "cached_pages": len(dispatch.underway.of(group).index) if dispatch.underway.looks else None,
        "breakers": {named(key): _state(breaker) for key, breaker in dispatch.breakers.of_group(group).items()},
    }


def _state(breaker: Breaker) -> dict[str, object]:
    return {"state": breaker.state.value, "failures": breaker.failures}
