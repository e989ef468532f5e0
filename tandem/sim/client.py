"""The clients in the simulator: what each asked for, what it has received, and what is right."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.errors import ApiError
from router.exchange import Exchange
from router.stream import Finished
from tandem.core.ids import Room
from tandem.core.messages import Done, Evicted, Token
from tandem.core.requests import Reason, Work
from tandem.sim.content import Content

REASONS = {
    "stop": Reason.STOP,
    "length": Reason.LENGTH,
    "client_gone": Reason.CLIENT_GONE,
    "deadline_exceeded": Reason.DEADLINE,
    "queue_full": Reason.QUEUE_FULL,
    "draining": Reason.DRAINING,
    "context_length_exceeded": Reason.TOO_LARGE,
    "kv_transfer_failed": Reason.TRANSFER_FAILED,
    "kv_checksum": Reason.KV_CHECKSUM,
    "invalid_grammar": Reason.BAD_GRAMMAR,
    "group_lost": Reason.GROUP_LOST,
    "request_quarantined": Reason.GROUP_LOST,
    "no_prefill": Reason.GROUP_LOST,
    "no_decode": Reason.GROUP_LOST,
    "no_colocated": Reason.GROUP_LOST,
    "overloaded": Reason.PEER_ENDED,
}
"""What a client is told, in the words of the groups. For everything else there is no reason here."""


FADING = 5
"""Times that answers are settled before the first of them is forgotten."""


class WrongAnswer(Exception):
    """A request was answered wrongly, twice or not at all."""


@dataclass(slots=True)
class Answer:
    """What one client has asked for and received, over all attempts."""

    work: Work  # the first attempt
    since_us: int
    deadline_us: int
    content: Content | None
    exchange: Exchange | None = None  # the router's; None: it was not taken
    refusal: ApiError | None = None
    outcome: str | None = None  # its code, once it is settled
    left: Reason | None = None  # why the client does not want it any more
    served: dict[str, None] = field(default_factory=dict)  # groups that were sent an attempt
    firsts: dict[int, int] = field(default_factory=dict)  # by attempt: where in the answer its token 0 is
    said: dict[tuple[Room, str], None] = field(default_factory=dict)  # last words: (attempt, group)
    told: dict[tuple[Room, str], int] = field(default_factory=dict)  # the newest token: (attempt, group)

    @property
    def attempt(self) -> Work:
        """The one under way."""
        return self.work if self.exchange is None else self.exchange.attempt.work

    @property
    def groups(self) -> tuple[str, ...]:
        """That serve the attempt under way."""
        return () if self.exchange is None else self.exchange.attempt.route.names

    @property
    def serving(self) -> tuple[str, ...]:
        """Those of them that have something to do for it."""
        return () if self.exchange is None else tuple(self.exchange.attempt.groups.values())

    @property
    def tokens(self) -> list[int]:
        """What the router has accepted."""
        if self.exchange is None:
            return []
        return list(self.exchange.stream.remaining().prompt[len(self.work.prompt) :])

    def needs(self, group: str) -> bool:
        """Whether it cannot go on without a group."""
        if self.exchange is None:
            return False
        named = self.exchange.attempt.groups.items()
        return any(self.exchange.stream.needs(role) for role, name in named if name == group)

    @property
    def code(self) -> str | None:
        """The finish reason or the error code that the client is told, when it is over."""
        if self.outcome is not None:
            return self.outcome
        if self.refusal is not None:
            return self.refusal.code
        if self.exchange is None or self.exchange.end is None:
            return None
        end = self.exchange.end
        return end.reason if isinstance(end, Finished) else end.error.code

    @property
    def ended(self) -> Reason | None:
        """The same. Raises WrongAnswer for what no fault explains."""
        code = self.code
        if code is not None and code not in REASONS:
            raise WrongAnswer(f"{self.attempt.room} ended with {code}")
        return None if code is None else REASONS[code]


class Client:
    """All clients, and the groups' words about their requests."""

    def __init__(self, content: Callable[[Work], Content] | None = None) -> None:
        self.answers: dict[Room, Answer] = {}  # by the room of the first attempt
        self.evicted = 0
        self._unsettled: dict[Room, Answer] = {}
        self._fading: deque[list[Answer]] = deque()
        self._content = content

    def asks(self, work: Work, now_us: int, deadline_us: int) -> Answer:
        """A request is about to be made."""
        content = self._content(work) if self._content is not None else None
        answer = Answer(work, now_us, deadline_us, content)
        self.answers[work.room] = self._unsettled[work.room] = answer
        return answer

    def submitted(self, group: str, work: Work) -> None:
        """An attempt is on its way to a group."""
        answer = self.answer(work.room)
        answer.served[group] = None
        answer.firsts[work.room.attempt] = answer.work.max_tokens - work.max_tokens

    def answer(self, room: Room) -> Answer:
        """The answer that any attempt belongs to."""
        return self.answers[Room(room.rid, 1)]

    def hear(self, group: str, message: Token | Done | Evicted) -> None:
        """A group's word is here, before the router takes it.

        Raises WrongAnswer for a wrong token, one that leaves a gap or comes from the same group again, and for words
        after a group's last one.
        """
        answer = self.answer(message.room)
        if (message.room, group) in answer.said:
            if isinstance(message, Done) and message.reason in (Reason.GROUP_LOST, Reason.GROUP_LEFT):
                return  # the same request had come again
            raise WrongAnswer(f"{message} from {group} after its last word")
        if isinstance(message, Token):
            self._check_token(answer, group, message)
            return
        answer.said[message.room, group] = None
        self.evicted += isinstance(message, Evicted)

    def _check_token(self, answer: Answer, group: str, message: Token) -> None:
        room, index, token = message.room, message.index, message.token
        at = index + answer.firsts[room.attempt]
        who = f"token {at} of {room} from {group}"
        exchange = answer.exchange
        if exchange is not None and exchange.end is None and exchange.attempt.room == room and at > exchange.count:
            raise WrongAnswer(f"{who}, but only {exchange.count} tokens came before")
        if answer.content is not None and answer.content.tokens[at : at + 1] != [token]:
            raise WrongAnswer(f"{who} is {token}, the reference has {answer.content.tokens}")
        if answer.content is not None and message.logprobs != answer.content.logprobs[at]:
            wrong = f"{message.logprobs}, the reference has {answer.content.logprobs[at]}"
            raise WrongAnswer(f"{who} has log-probabilities {wrong}")
        if index <= answer.told.get((room, group), -1):
            raise WrongAnswer(f"{who}, which had told it before")
        answer.told[room, group] = index

    def waiting(self) -> list[Answer]:
        """Those that have not been answered."""
        return [answer for answer in self.answers.values() if answer.code is None]

    def check(self) -> None:
        """At the end: everyone has one answer, a beginning of the right one, and all of it who was served to the end.

        Raises WrongAnswer.
        """
        for answer in self.answers.values():
            _check(answer)

    def settle(self) -> list[str]:
        """Check the answers that are complete; returns how they ended. What is right about them is soon forgotten.

        Ranks may lag a little behind what a client has received. Raises WrongAnswer.
        """
        complete = [answer for answer in self._unsettled.values() if answer.code is not None]
        for answer in complete:
            _check(answer)
            del self._unsettled[answer.work.room]
        self._fading.append(complete)
        if len(self._fading) > FADING:
            for answer in self._fading.popleft():
                answer.outcome, answer.content, answer.exchange = answer.code, None, None
        return [answer.code for answer in complete if answer.code is not None]


def _check(answer: Answer) -> None:
    who, ended, tokens = answer.attempt.room, answer.ended, answer.tokens
    if ended is None:
        raise WrongAnswer(f"{who} was never answered")
    if answer.content is None:
        return
    whole = ended in (Reason.STOP, Reason.LENGTH)
    if tokens != answer.content.tokens[: None if whole else len(tokens)]:
        raise WrongAnswer(f"{who} ended {ended} with {tokens} of {answer.content.tokens}")
