"""What one rank's process has counted since its start, over all its epochs: for /metrics, nothing is decided by it."""

from collections.abc import Sized

from tandem.core.config import Group
from tandem.core.ends import EndKind
from tandem.core.errors import Divergence
from tandem.core.events import Ran, Started, Verified, Written
from tandem.core.figures import Figures
from tandem.core.ids import RankId, Tick
from tandem.core.plan import Ended, Granted, Plan
from tandem.core.requests import Reason
from tandem.runtime.history import Outline, What, Write
from tandem.runtime.metrics_table import BUCKETS

WELL = (Reason.STOP, Reason.LENGTH, Reason.STOP_STRING)
"""Ends that are no abort."""
FAILED = (Reason.TRANSFER_FAILED, Reason.KV_CHECKSUM)
PLACES = {
    What.SUBMITTED: "queue",
    What.BOOTSTRAPPED: "queue",
    What.COMPUTING: "prefill",
    What.GRANTED: "transfer",
    What.FIRST_TOKEN: "transfer",
    What.TRANSFERRED: "transfer",
    What.DECODING: "decode",
    What.RETRACTED: "host",
    What.RESUMED: "host",
}
"""How far a room has come, by the last that became of it."""
WRITES = {Written.FAILED_SETTLED: "write_settled", Written.FAILED_UNSETTLED: "write_unsettled"}
"""What a failed write says of why its room's hand-over has failed."""
PEER, CHECKSUM, ELSEWHERE = "peer", "checksum", "elsewhere"
"""The same of what this rank has observed otherwise, and if it has observed nothing."""


class Tally:
    """Told by the timeline of what goes by, on the tick loop's thread. Times are microseconds since 1970."""

    def __init__(self, group: Group, rank: RankId) -> None:
        self.figures = Figures(BUCKETS)
        self.ticks = 0
        self.bubble_us = 0
        self._name = f"{group.name}.{rank}"
        self._first = rank == 0
        self._alone = group.size == 1
        self._durations = self.figures.histogram("tick_duration_seconds")
        self._waits = self.figures.histogram("ring_receive_wait_seconds")
        self.begin((), 0)

    def begin(self, flights: Sized, bytes_of_page: int) -> None:
        """Another epoch: `flights` are its ticks in flight, `bytes_of_page` what a page has in all of the layers."""
        self._flights = flights
        self._bytes_of_page = bytes_of_page
        self._waiting: dict[Tick, int] = {}  # ticks that wait for the ring, since when
        self._asked: dict[Tick, tuple[int, tuple[str, ...]]] = {}  # by the tick of the baton with the ballot
        self._started_us = 0
        self._idle_us = 0  # the engine has stood still since then, while ticks were in flight; 0: it has not

    def end(self, kind: EndKind, error: BaseException) -> None:
        """The epoch is over, with the fence of all that this rank had in it."""
        self.figures.count("epoch_fences_total", kind.value)
        if isinstance(error, Divergence):
            self.figures.count("divergence_total")

    # ticks

    def on_plan(self, now_us: int, plan: Plan) -> None:
        """A tick has been stepped."""
        self.ticks += 1
        if self._idle_us and not len(self._flights):
            self.bubble_us += max(0, now_us - self._idle_us)
            self._idle_us = 0
        if self._alone:
            return
        if plan.rows and not self._first:
            self._waiting[plan.tick] = now_us
        if plan.asks:
            self._asked[Tick(plan.tick + 1)] = now_us, tuple(ask.question.value for ask in plan.asks)

    def on_launch(self, now_us: int, tick: Tick) -> None:
        """A tick goes to the engine: it has its hidden states. Rank 0 waits for the return from here on."""
        if self._first:
            if not self._alone:
                self._waiting[tick] = now_us
        else:
            self._waited(now_us, tick)

    def on_return(self, now_us: int, tick: Tick) -> None:
        """Rank 0: a tick came back."""
        self._waited(now_us, tick)

    def on_outcome(self, now_us: int, tick: Tick) -> None:
        """The ballot that rode on this tick's baton is decided, as far as this rank hears."""
        asked_us, kinds = self._asked.pop(tick, (0, ()))
        for kind in kinds:
            self.figures.observe("vote_wait_seconds", seconds(now_us - asked_us), kind)

    def on_engine(self, at_us: int, event: Started | Ran) -> None:
        """The engine's thread has begun or ended a tick, at its time."""
        if isinstance(event, Started):
            self._started_us = at_us
            if self._idle_us:
                self.bubble_us += max(0, at_us - self._idle_us)
                self._idle_us = 0
        else:
            self._durations.observe(seconds(at_us - self._started_us))
            self._idle_us = at_us

    def _waited(self, now_us: int, tick: Tick) -> None:
        since_us = self._waiting.pop(tick, None)
        if since_us is not None:
            self._waits.observe(seconds(now_us - since_us))

    # rooms

    def on_bootstrapped(self, now_us: int, room: Outline) -> None:
        """Prefill: every rank has its grants."""
        self._phase("bootstrap", now_us, room.marks.get(What.SUBMITTED))

    def on_granted(self, now_us: int, room: Outline, note: Granted) -> None:
        """Decode: it has its pages; those before the first one need not come."""
        self._phase("alloc", now_us, room.marks.get(What.SUBMITTED))
        self.figures.add("kv_saved_bytes_total", note.first_page * self._bytes_of_page)

    def on_committed(self, write: Write, size: int) -> None:
        """A write is over and told."""
        self.figures.add("kv_bytes_total", size, f"{self._name}->{write.peer}")
        self._phase("queue", write.taken_us, write.computed_us)
        self._phase("post", write.begun_us, write.taken_us)
        self._phase("wire", write.ended_us, write.begun_us)
        self._phase("commit", write.committed_us, write.ended_us)

    def on_joined(self, now_us: int, room: Outline) -> None:
        """Decode: first token and KV are both here."""
        first_us = room.marks.get(What.FIRST_TOKEN, now_us)
        self.figures.observe("kv_exposed_seconds", seconds(room.marks.get(What.TRANSFERRED, now_us) - first_us))

    def on_first_token(self, cached: int) -> None:
        """Whoever computed the prompt tells its first token, and how much of it was in the cache."""
        self.figures.add("prefix_hit_tokens_total", cached)

    def on_made_room(self) -> None:
        """Decode: a request gives its pages up for an older one."""
        self.figures.count("retracted_total")

    def on_ended(self, note: Ended, room: Outline | None, failure: str) -> None:
        """`failure`: what this rank has observed that may have ended it. No room: its story has been forgotten."""
        if note.reason not in WELL:
            self.figures.count("aborts_total", PLACES.get(room.state, "queue") if room is not None else "decode")
        if note.reason in FAILED:
            found = CHECKSUM if note.reason is Reason.KV_CHECKSUM else failure or ELSEWHERE
            self.figures.count("kv_transfer_failures_total", found)

    def on_verified(self, verified: Verified) -> None:
        """Decode: blocks that have landed were compared with what was sent."""
        if not verified.intact:
            self.figures.count("kv_checksum_mismatch_total")

    def _phase(self, phase: str, to_us: int, from_us: int | None) -> None:
        if from_us is not None:
            self.figures.observe("kv_transfer_duration_seconds", seconds(to_us - from_us), phase)


def seconds(us: int) -> float:
    """Prometheus's unit."""
    return us / 1e6
