"""What rank 0 gathers for its next frame. Only here does a local observation turn into a verdict."""

from collections import deque

from tandem.core.ids import Room, Slot, Tick
from tandem.core.inputs import MAX_ARRIVALS, Arrival, Frame, Harvest, Kind, Outcome, Verdict
from tandem.core.messages import Fact, Progress


def conclusions(room: Room, fact: Fact) -> list[Verdict]:
    """Everything that a group's combined fact entails; a role ignores the kinds it has no use for."""
    kinds: list[Kind] = []
    if fact.progress >= Progress.WAITING_FOR_INPUT:
        kinds.append(Kind.BOOTSTRAPPED)
    if fact.progress == Progress.SUCCESS:
        kinds.append(Kind.TRANSFERRED)
    if fact.failed:
        kinds.append(Kind.FAILED)
    if fact.corrupt:
        kinds.append(Kind.CORRUPTED)
    if fact.quiet:
        kinds.append(Kind.QUIET)
    if fact.fenced:
        kinds.append(Kind.FENCED)
    backups = [Verdict(room, Kind.BACKED_UP, nth) for nth in range(1, fact.backups + 1)]
    return [Verdict(room, kind) for kind in kinds] + backups


class Leader:
    """The inputs that wait for the next frame, in the order they came."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._kinds = kinds  # what this role's verdicts may be
        self._arrivals: deque[Arrival] = deque()
        self._verdicts: list[Verdict] = []
        self._harvests: list[Harvest] = []
        self._ballots: list[Outcome] = []
        self._issued: dict[Room, list[Verdict]] = {}
        self._now_ms = 0

    def arrive(self, arrival: Arrival) -> None:
        """A request, a first token or an abort has come in."""
        self._arrivals.append(arrival)

    def conclude(self, verdict: Verdict) -> None:
        """Issue a verdict, once."""
        issued = self._issued.setdefault(verdict.room, [])
        if verdict.kind in self._kinds and verdict not in issued:
            issued.append(verdict)
            self._verdicts.append(verdict)

    def harvest(self, harvest: Harvest) -> None:
        """A tick's tokens are back."""
        self._harvests.append(harvest)

    def ballot(self, outcome: Outcome) -> None:
        """A vote is decided."""
        self._ballots.append(outcome)

    def forget(self, room: Room) -> None:
        """The room left the replicated table: no verdict about it can come any more."""
        self._issued.pop(room, None)

    @property
    def waiting(self) -> bool:
        """Whether the next frame has content."""
        return bool(self._arrivals or self._verdicts or self._harvests or self._ballots)

    @property
    def returned(self) -> frozenset[Tick]:
        """Ticks whose harvest the next frame brings. For membership only."""
        return frozenset(harvest.tick for harvest in self._harvests)

    def take(self, tick: Tick, slot: Slot, now_ms: int) -> Frame:
        """Build the frame of `tick` and start gathering for the next."""
        self._now_ms = max(self._now_ms, now_ms)
        arrivals = tuple(self._arrivals.popleft() for _ in range(min(MAX_ARRIVALS, len(self._arrivals))))
        frame = Frame(
            tick,
            slot,
            self._now_ms,
            arrivals,
            tuple(self._verdicts),
            tuple(self._harvests),
            tuple(self._ballots),
        )
        self._verdicts, self._harvests, self._ballots = [], [], []
        return frame
