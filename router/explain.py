"""Where a request would go at this moment, and why: POST /route/explain. Nothing is sent, and nothing changes."""

import copy
from collections.abc import Iterator

import msgspec

from router.asked import Asked
from router.breakers import named
from router.chat import Chat
from router.completions import Completions
from router.cost import Parts, Ranked, Sight, ranked
from router.dispatch import Dispatch
from router.format import Dialect
from router.membership import State
from router.placement import Route, routes
from tandem.core.config import RoleName


class Option(msgspec.Struct):
    """A route that can be taken. All numbers are tokens, but for requests."""

    groups: tuple[str, ...]
    cost: float
    parts: Parts
    cached_on_prefill: int
    queued_on_prefill: int
    cached_on_decode: int
    free_on_decode: int
    requests_on_decode: int


class Excluded(msgspec.Struct):
    """A group, or a pair of groups, that cannot be taken or is only taken when nothing else is left."""

    groups: tuple[str, ...]
    why: str


class Explanation(msgspec.Struct):
    """`chosen` is what the policy would take; `options` are ranked by cost, whatever the policy is."""

    policy: str
    prompt_tokens: int
    chosen: tuple[str, ...] | None
    options: list[Option]
    excluded: list[Excluded]


def dialect_of(payload: bytes) -> Dialect:
    """A chat has messages, a completion has none. Inside of a text the quotes would be escaped."""
    return Chat() if b'"messages"' in payload else Completions()


def explain(dispatch: Dispatch, ask: Asked) -> Explanation:
    """For the request's first prompt."""
    hashed = dispatch.hashed(ask.prompt, ask.salt)
    free, resting = dispatch.by_breaker(dispatch.routes())
    among = free or resting
    sight = dispatch.sight(among, hashed)
    # A copy: who only asks takes no turn.
    chosen = copy.copy(dispatch.policy).choose(among, lambda some: dispatch.sight(some, hashed))
    return Explanation(
        policy=dispatch.policy_name,
        prompt_tokens=len(ask.prompt),
        chosen=None if chosen is None else chosen.names,
        options=[_option(one, sight) for one in ranked(among, sight)],
        excluded=[*_resting(dispatch, resting), *_unusable(dispatch), *_unpaired(dispatch)],
    )


def _option(one: Ranked, sight: Sight) -> Option:
    prefill, decode = sight.prefilling[one.route.names[0]], sight.decoding[one.route.names[-1]]
    parts = Parts(*(round(part, 3) for part in msgspec.structs.astuple(one.parts)))
    return Option(
        groups=one.route.names,
        cost=round(one.parts.cost, 3),
        parts=parts,
        cached_on_prefill=prefill.cached,
        queued_on_prefill=prefill.queued,
        cached_on_decode=decode.cached,
        free_on_decode=decode.free,
        requests_on_decode=decode.requests,
    )


def _resting(dispatch: Dispatch, resting: list[Route]) -> Iterator[Excluded]:
    for route in resting:
        key, left_s = dispatch.rest(route)
        failures = dispatch.breakers.failures(key)
        why = f"the breaker of {named(key)} is open for {left_s:.0f} s yet, after {failures} failures in a row"
        yield Excluded(route.names, why)


def _unusable(dispatch: Dispatch) -> Iterator[Excluded]:
    for watched in dispatch.membership.groups():
        state = dispatch.membership.state(watched)
        if state is not State.USABLE:
            cause = f": {watched.lost}" if state is State.LOST else ""
            yield Excluded((watched.group.name,), f"it {state.value}{cause}")


def _unpaired(dispatch: Dispatch) -> Iterator[Excluded]:
    """Groups that can be used, and have no partner of the same model, layout and protocol."""
    heads = dispatch.membership.usable()
    paired = [name for route in routes(heads) for name in route.names]
    partners = {RoleName.PREFILL: RoleName.DECODE, RoleName.DECODE: RoleName.PREFILL}
    for head in heads:
        partner = partners.get(head.group.role)
        if partner is not None and head.group.name not in paired:
            yield Excluded(
                (head.group.name,), f"no usable {partner.value} group has its fingerprint {head.fingerprint}"
            )
