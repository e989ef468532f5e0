"""A decode role with what a scheduler does around it, one input at a time."""

from typing import Any

from decode.role import DecodeRole
from tandem.core.config import Limits
from tandem.core.ids import NO_SLOT, RequestId, Room, Slot
from tandem.core.inputs import Abort, FirstToken, Kind, Submit, Verdict
from tandem.core.plan import Ask, Note, Question, Row
from tandem.core.requests import Reason, Sampling, Work

GREEDY = Sampling()
LIMITS = Limits(page_size=4, num_pages=8, context=64, slot_rows=1)


def room(number: int) -> Room:
    return Room(RequestId(number), 1)


def ask(number: int) -> Ask:
    """Prealloc of a request."""
    return Ask(Question.PREALLOC, room(number), "p0")


def retract(number: int) -> Ask:
    return Ask(Question.RETRACT, room(number))


def resume(number: int) -> Ask:
    return Ask(Question.RESUME, room(number))


class Bench:
    """Notes of all steps are kept in `notes`, rows of the last one in `rows`."""

    def __init__(self, limits: Limits = LIMITS, slots: int = 1) -> None:
        self.role = DecodeRole(limits, slots)
        self.notes: list[Note] = []
        self.rows: list[Row] = []

    def submit(
        self,
        number: int,
        prompt: int = 4,
        max_tokens: int = 4,
        remaining_ms: int = 1_000,
        now_ms: int = 0,
        priority: int = 0,
        tokens: tuple[int, ...] | None = None,
        salt: str = "",
        sampling: Sampling = GREEDY,
        **more: Any,
    ) -> list[Note]:
        """Different requests have different prompts, unless `tokens` says what to ask."""
        content = tokens if tokens is not None else tuple(range(100 * number, 100 * number + prompt))
        work = Work(room(number), content, max_tokens, (0,), sampling, "p0", priority, salt, **more)
        return self._noted(self.role.on_submit(Submit(work, remaining_ms), now_ms))

    def asks(self, slot: int = NO_SLOT, now_ms: int = 0) -> list[Ask]:
        """One decision. By default it names no slot, so nothing runs."""
        decision = self.role.decide(Slot(slot), now_ms)
        self.rows = list(decision.rows)
        self._noted(list(decision.notes))
        return list(decision.asks)

    def plan(self, slot: int = 0) -> list[Row]:
        """The rows of one decision."""
        self.asks(slot)
        return self.rows

    def land(self, token: int = 8) -> list[Note]:
        """The rows of the last decision come back."""
        notes = [note for row in self.rows for note in self.role.on_tokens(row, (token,))]
        return self._noted(notes)

    def runs(self, slot: int = 0) -> list[int]:
        """Who computes in one tick of a slot, from its plan to its harvest."""
        numbers = [int(row.room.rid) for row in self.plan(slot)]
        self.land()
        return numbers

    def outcome(self, asked: Ask, yes: bool = True, now_ms: int = 0) -> list[Note]:
        return self._noted(self.role.on_outcome(asked, yes, now_ms))

    def granted(self, number: int, **more: object) -> None:
        self.submit(number, **more)  # type: ignore[arg-type]
        assert ask(number) in self.asks()
        self.outcome(ask(number))

    def running(self, number: int, **more: object) -> None:
        self.granted(number, **more)
        self.first(number)
        self.verdict(number, Kind.TRANSFERRED)

    def first(self, number: int, token: int = 7) -> list[Note]:
        return self._noted(self.role.on_first_token(FirstToken(room(number), token)))

    def verdict(self, number: int, kind: Kind, nth: int = 1) -> list[Note]:
        return self._noted(self.role.on_verdict(Verdict(room(number), kind, nth)))

    def abort(self, number: int, peer: str | None = None) -> list[Note]:
        return self._noted(self.role.on_abort(Abort(room(number), Reason.CLIENT_GONE, peer)))

    def _noted(self, notes: list[Note]) -> list[Note]:
        self.notes += notes
        self.role.pool.audit()
        return notes

    def pages(self) -> tuple[int, int, int]:
        """Available, private, quarantined."""
        counts = self.role.pool.counts()
        return self.role.pool.available, counts["owned"], counts["quarantined"]

    def host_pages(self) -> int:
        """In use."""
        host = self.role._held.host
        host.audit()
        return host.num_pages - host.available
