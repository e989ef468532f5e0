"""Dynamic chunking on rank 0: what its own forwards take becomes a table of chunk sizes for all ranks."""

from tandem.core.chunking import Fit
from tandem.core.config import Group, Limits, RoleName
from tandem.core.controls import BUCKET
from tandem.core.events import Ran, Started
from tandem.core.ids import Tick
from tandem.core.inputs import Knobs
from tandem.core.plan import Plan


class ChunkTuner:
    """Local to rank 0: only the integers that it comes to enter a frame, like an operator's knobs."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._launched: dict[Tick, list[tuple[int, int]]] = {}  # (tokens, start) of each chunk
        self._started_ms: dict[Tick, int] = {}

    def launched(self, plan: Plan) -> None:
        """A plan with rows is on its way."""
        self._launched[plan.tick] = [(len(row.tokens), row.start) for row in plan.rows]

    def on(self, event: Started | Ran, now_ms: int) -> Knobs | None:
        """A forward of this stage has begun or ended. Returns new knobs, if it is time for a new table."""
        match event:
            case Started(tick=tick):
                self._started_ms[tick] = now_ms
                return None
            case Ran(tick=tick):
                duration_ms = now_ms - self._started_ms.pop(tick)
                table = self._fit.observe(self._launched.pop(tick), duration_ms)
                return None if table is None else Knobs(chunk_table=table)


def tuner_of(group: Group, limits: Limits) -> ChunkTuner | None:
    """None unless the operator asked for it, and for a group that computes no chunks."""
    if not limits.dynamic_chunking or group.role is RoleName.DECODE:
        return None
    return ChunkTuner(Fit(limits.chunked_prefill_size, limits.context, BUCKET, group.size))
