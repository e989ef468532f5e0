"""A decode rank that says no once, for no reason that anybody could see."""

from decode.receiver import KVReceiver
from tandem.core.config import Group, Limits
from tandem.core.ids import RankId
from tandem.core.plan import Ask, Question


class Unwilling(KVReceiver):
    """Refuses the first vote about a question."""

    def __init__(self, group: Group, rank: RankId, limits: Limits, question: Question) -> None:
        super().__init__(group.name, rank, group.layers(rank), limits.page_size)
        self._refuses: Question | None = question

    def answer(self, ask: Ask) -> bool:
        """See KVReceiver."""
        if ask.question is not self._refuses:
            return super().answer(ask)
        self._refuses = None
        return False
