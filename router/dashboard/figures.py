"""Figures over the attempts that are remembered. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from router.dashboard.book import GIVEN_UP, Told
from router.dashboard.words import MOST_SLOW, FirstTokens, LiveNow, SlowNow, Spread
from router.recalled import Recalled
from tandem.runtime.history import Summary

PHASES = ("alloc", "bootstrap", "admit", "compute", "exposed", "decode", "queue", "post", "wire", "commit")
"""Those of an attempt in their order, then those of a write."""
BEFORE_FIRST = ("alloc", "bootstrap", "admit", "compute")
ROUTER_QUEUE = "router queue"

Remembered = Iterable[tuple[Summary, Told]]
Waited = Callable[[str], float]
"""For how many ms the request of this id waited in the router's queue."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that so large a share of them does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spreads(remembered: Remembered) -> list[Spread]:
    """How long each phase takes, of whatever is over."""
    taken: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for about, _ in remembered:
        for phase, took_ms in about.phases_ms.items():
            taken[phase].append(took_ms)
    return [
        Spread(phase, len(times), quantile(times, 0.5), quantile(times, 0.95), times[-1])
        for phase in PHASES
        if (times := sorted(taken[phase]))
    ]


def first_token_ms(about: Summary, told: Told, waited_ms: float) -> float | None:
    """From the request's arrival to its first token; of an attempt after the first one, from its submit."""
    if told.first_us is None:
        return None
    return round((told.first_us - about.began_us) / 1000 + (waited_ms if about.attempt == 1 else 0.0), 3)


def parts_ms(about: Summary, waited_ms: float) -> dict[str, float]:
    """What the time to the first token is made of, in order."""
    before = {phase: about.phases_ms[phase] for phase in BEFORE_FIRST if phase in about.phases_ms}
    return {ROUTER_QUEUE: waited_ms, **before} if waited_ms and about.attempt == 1 else before


def first_tokens(remembered: Remembered, waited: Waited) -> FirstTokens:
    """Where the time to the first token goes."""
    times: list[float] = []
    sums: dict[str, float] = dict.fromkeys((ROUTER_QUEUE, *BEFORE_FIRST), 0.0)
    for about, told in remembered:
        waited_ms = waited(about.id)
        took_ms = first_token_ms(about, told, waited_ms)
        if took_ms is None:
            continue
        times.append(took_ms)
        for part, part_ms in parts_ms(about, waited_ms).items():
            sums[part] += part_ms
    if not times:
        return FirstTokens(0, 0.0, 0.0, {})
    times.sort()
    parts = {part: round(whole / len(times), 3) for part, whole in sums.items()}
    return FirstTokens(len(times), quantile(times, 0.5), quantile(times, 0.95), parts)


def slowest(remembered: Remembered, recalled: Recalled, now_us: int) -> list[SlowNow]:
    """Those that failed and those that waited longest for their first token, as many as are shown."""
    found = [_slow(about, told, recalled, now_us) for about, told in remembered]
    found.sort(key=lambda one: (one.failed, one.first_token_ms or 0.0), reverse=True)
    return found[:MOST_SLOW]


def _slow(about: Summary, told: Told, recalled: Recalled, now_us: int) -> SlowNow:
    waited_ms = recalled.waited_ms(about.id)
    parts = parts_ms(about, waited_ms)
    return SlowNow(
        id=about.id,
        attempt=about.attempt,
        groups=about.groups,
        ago_s=round((now_us - about.began_us) / 1e6, 1),
        first_token_ms=first_token_ms(about, told, waited_ms),
        whole_ms=None if told.over_us is None else round((told.over_us - about.began_us) / 1000, 3),
        longest=max(parts, key=lambda part: parts[part], default=""),
        prompt_tokens=about.prompt_tokens,
        tokens=about.tokens,
        state=GIVEN_UP if told.given_up else about.state,
        reason=about.reason,
        failed=told.failed or told.given_up or bool(recalled.failure(about.id)),
    )


def on_its_way(about: Summary, told: Told, now_us: int, progress: Mapping[str, Sequence[float]]) -> LiveNow:
    """`progress`: of each layer, by id and attempt."""
    return LiveNow(
        id=about.id,
        attempt=about.attempt,
        groups=about.groups,
        state=GIVEN_UP if told.given_up else about.state,
        over=told.over,
        prompt_tokens=about.prompt_tokens,
        layers=about.layers,
        bytes=about.bytes,
        age_ms=round(max(0, now_us - about.began_us) / 1000, 1),
        progress=list(progress.get(f"{about.id}.{about.attempt}", ())),
    )
