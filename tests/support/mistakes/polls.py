"""Ring votes on the transfer itself: what is asked together, and whose facts answer."""

from mistakes.ranks import Patch

from consensus.polls import CONCLUDES, Polls, answer
from prefill.role import PrefillRole
from tandem.core.plan import Question
from tandem.core.rank import Rank


def quiet_is_asked_alone(patch: Patch) -> None:
    """A room that is asked whether it is quiet is not asked on the same ballot whether it is intact."""
    original = PrefillRole.polls

    def polls(role: PrefillRole):
        wanted = original(role)
        return {room: [Question.QUIET] if Question.QUIET in asked else asked for room, asked in wanted.items()}

    patch.setattr(PrefillRole, "polls", polls)


def answered_from_another_rooms_fact(patch: Patch) -> None:
    """A rank answers a poll with what it has observed last, of whatever room."""
    original = Rank._answer

    def answer_from_the_latest(rank: Rank, ask):
        facts = list(rank._facts.values())
        return answer(ask.question, facts[-1]) if ask.question in CONCLUDES and facts else original(rank, ask)

    patch.setattr(Rank, "_answer", answer_from_the_latest)


def a_poll_is_not_asked_again(patch: Patch) -> None:
    """A room whose poll said no is never asked about that again."""
    original = Polls.due

    def due(polls: Polls, wanted, most: int, now_ms: int):
        fresh = {room: asked for room, asked in wanted.items() if (room, tuple(asked)) not in heard(polls)}
        asks = original(polls, fresh, most, now_ms)
        heard(polls).update({(ask.room, tuple(wanted[ask.room])): None for ask in asks})
        return asks

    patch.setattr(Polls, "due", due)


def heard(polls: Polls):
    return vars(polls).setdefault("_heard", {})
