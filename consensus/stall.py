"""Whether a ring stands still although there is work, and who holds it up: rank 0's judgement of all heartbeats."""

from collections.abc import Sequence

from consensus.pulse import LOOP
from tandem.core.messages import Heartbeat

STALL_S = 10.0
"""Nobody may stand still for longer while somebody waits; multiplied by the timer scale."""
STALL_TICKS = 20
"""Nor for longer than so many usual ticks, if that is more."""


def patience_ms(usual_s: float, timer_scale: float) -> int:
    """How long a ring may stand still."""
    return int(max(STALL_S, STALL_TICKS * usual_s) * timer_scale * 1000)


def stalled(beats: Sequence[Heartbeat], patience_ms: int) -> str | None:
    """`beats` holds the last heartbeat of every rank, by rank. None while one of them moves, or nobody waits."""
    still_ms = min(beat.since_ms for beat in beats)
    if still_ms < patience_ms or not any(beat.awaiting for beat in beats):
        return None
    beat, awaited = _culprit(beats)
    return f"the ring stalled: rank {beat.rank}, at tick {beat.tick}, has awaited {awaited} for {still_ms / 1000:.0f} s"


def _culprit(beats: Sequence[Heartbeat]) -> tuple[Heartbeat, str]:
    """Who is stuck by itself, before who only waits for others; the earlier in the ring first."""
    newest = max(beat.tick for beat in beats)
    for beat in beats:
        if beat.awaiting == LOOP:
            return beat, LOOP
    for beat in beats:
        if beat.awaiting.startswith("ran("):
            return beat, beat.awaiting
    for beat in beats:
        if beat.tick < newest:
            return beat, f"baton({beat.tick + 1})"
    for beat in (*beats[1:], beats[0]):  # rank 0 waits for the last of a chain
        if beat.awaiting:
            return beat, beat.awaiting
    raise AssertionError("somebody waits")
