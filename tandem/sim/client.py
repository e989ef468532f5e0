"""The router's part in the simulator: takes answers, submits evicted requests anew, and knows what is right."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tandem.core.ids import Room
from tandem.core.messages import Done, Evicted, Token
from tandem.core.requests import Reason, Work
from tandem.sim.content import Content
from tandem.sim.routes import Route

RETRIED = (Reason.TRANSFER_FAILED, Reason.KV_CHECKSUM)
"""What the router has computed anew, as its `Requests` do."""


class WrongAnswer(Exception):
    """A request was answered wrongly, twice or not at all."""


@dataclass(slots=True)
class Answer:
    """What one client has asked for and received, over all attempts."""

    work: Work  # the first attempt
    groups: Route  # that serve the attempt under way
    since_us: int
    deadline_us: int
    content: Content | None
    attempt: Work  # the one under way
    tokens: list[int] = field(default_factory=list)
    retries_left: int = 0
    ended: Reason | None = None
    left: Reason | None = None  # why the client does not want it any more
    said: dict[tuple[Room, str], None] = field(default_factory=dict)  # last words: (attempt, group)
    told: dict[tuple[Room, str], int] = field(default_factory=dict)  # the newest token: (attempt, group)

    def needs(self, group: str) -> bool:
        """Whether it cannot go on without a group: prefill has done its part once decode has a token of its own."""
        handed_over = len(self.groups) > 1 and self.told.get((self.attempt.room, self.groups[1]), 0) > 0
        return group in self.groups[1 if handed_over else 0 :]

    @property
    def open(self) -> bool:
        """Whether more may come: after `peer_ended` the other group still has the real reason to tell."""
        return self.ended in (None, Reason.PEER_ENDED)


class Client:
    """Applies the router's rules: positions in order, duplicates dropped, the first end is the answer."""

    def __init__(self, content: Callable[[Work], Content] | None = None) -> None:
        self.answers: dict[Room, Answer] = {}  # by the room of the first attempt
        self.evicted = 0
        self.moved = 0  # attempts that went on with other groups
        self._content = content

    def submitted(self, work: Work, groups: Route, now_us: int, deadline_us: int, retries: int = 0) -> None:
        """A request is on its way to its groups, maybe not for the first time."""
        if work.room not in self.answers and work.room.attempt == 1:
            content = self._content(work) if self._content is not None else None
            self.answers[work.room] = Answer(work, groups, now_us, deadline_us, content, work, retries_left=retries)
        answer = self.answer(work.room)
        if work.room == answer.attempt.room and groups != answer.groups:
            answer.groups = groups
            self.moved += 1

    def answer(self, room: Room) -> Answer:
        """The answer that any attempt belongs to."""
        return self.answers[Room(room.rid, 1)]

    def needing(self, group: str) -> list[Answer]:
        """Those that are lost with a group."""
        return [answer for answer in self.waiting() if answer.needs(group)]

    def lost(self, room: Room) -> None:
        """No group can go on with it."""
        answer = self.answer(room)
        if answer.open:
            answer.ended = Reason.GROUP_LOST

    def left(self, work: Work, reason: Reason) -> None:
        """The client wants no more."""
        self.answer(work.room).left = reason

    def on_message(self, group: str, message: Token | Done | Evicted) -> Work | None:
        """Take a group's word; the work to submit anew, if it was evicted or could not be handed over.

        Raises WrongAnswer for a wrong token, one that leaves a gap or comes from the same group again, and for words
        after a group's last one.
        """
        answer = self.answer(message.room)
        if (message.room, group) in answer.said:
            raise WrongAnswer(f"{message} from {group} after its last word")
        if not isinstance(message, Token):
            answer.said[message.room, group] = None
        if message.room != answer.attempt.room:
            return None
        match message:
            case Token(index=index, token=token):
                self._take(answer, index, token, group)
            case Done(reason=reason) if reason in RETRIED and answer.open and answer.retries_left:
                answer.retries_left -= 1
                return self._again(answer)
            case Done(reason=reason):
                if answer.open:
                    answer.ended = reason
            case Evicted():
                self.evicted += 1
                return self._again(answer)
        return None

    def _take(self, answer: Answer, index: int, token: int, group: str) -> None:
        at = index + answer.work.max_tokens - answer.attempt.max_tokens
        who = f"token {at} of {answer.attempt.room} from {group}"
        if at > len(answer.tokens) and answer.open:
            raise WrongAnswer(f"{who}, but only {len(answer.tokens)} tokens came before")
        if answer.content is not None and answer.content.tokens[at : at + 1] != [token]:
            raise WrongAnswer(f"{who} is {token}, the reference has {answer.content.tokens}")
        if index <= answer.told.get((answer.attempt.room, group), -1):
            raise WrongAnswer(f"{who}, which had told it before")
        answer.told[answer.attempt.room, group] = index
        if answer.open and at == len(answer.tokens):
            answer.tokens.append(token)

    def _again(self, answer: Answer) -> Work | None:
        """The next attempt goes on where the last one was: its prompt holds what is delivered."""
        if not answer.open:
            return None
        if answer.left is not None:
            answer.ended = answer.left
            return None
        answer.ended = None
        room = Room(answer.attempt.room.rid, answer.attempt.room.attempt + 1)
        prompt = answer.work.prompt + tuple(answer.tokens)
        most = answer.work.max_tokens - len(answer.tokens)
        answer.attempt = msgspec.structs.replace(answer.work, room=room, prompt=prompt, max_tokens=most)
        return answer.attempt

    def waiting(self) -> list[Answer]:
        """Those that have not been answered."""
        return [answer for answer in self.answers.values() if answer.open]

    def check(self) -> None:
        """At the end: everyone has one answer, and whoever was served to the end has all tokens."""
        for answer in self.answers.values():
            who = answer.attempt.room
            if answer.open:
                raise WrongAnswer(f"{who} was never answered, except {answer.ended}")
            whole = answer.ended in (Reason.STOP, Reason.LENGTH)
            if whole and answer.content is not None and answer.tokens != answer.content.tokens:
                raise WrongAnswer(f"{who} ended {answer.ended} with {answer.tokens} of {answer.content.tokens}")
