"""The router's part in the simulator: submits requests, takes tokens, and holds every answer against the oracle."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.core.ids import Room
from tandem.core.messages import Done, Token
from tandem.core.requests import Reason, Work


class WrongAnswer(Exception):
    """A request was answered wrongly, twice or not at all."""


@dataclass(slots=True)
class Answer:
    """What one client has received."""

    work: Work
    tokens: list[int] = field(default_factory=list)
    ended: Reason | None = None
    groups: list[str] = field(default_factory=list)  # that have said their last word

    @property
    def open(self) -> bool:
        """Whether more may come: after `peer_ended` the other group still has the real reason to tell."""
        return self.ended in (None, Reason.PEER_ENDED)


class Client:
    """Applies the router's rules: positions in order, duplicates dropped, the first end is the answer."""

    def __init__(self, reference: Callable[[Work], list[int]] | None = None) -> None:
        self.answers: dict[Room, Answer] = {}
        self._reference = reference

    def submitted(self, work: Work) -> None:
        """A request is on its way to both groups, maybe not for the first time."""
        self.answers.setdefault(work.room, Answer(work))

    def on_message(self, group: str, message: Token | Done) -> None:
        """Raises WrongAnswer when a token leaves a gap or comes after a group's last word."""
        answer = self.answers[message.room]
        if group in answer.groups:
            raise WrongAnswer(f"{message} from {group} after its last word")
        match message:
            case Token(index=index, token=token):
                if index > len(answer.tokens):
                    raise WrongAnswer(f"{message} from {group}, but only {len(answer.tokens)} tokens came before")
                if answer.open and index == len(answer.tokens):
                    answer.tokens.append(token)
            case Done(reason=reason):
                answer.groups.append(group)
                if answer.open:
                    answer.ended = reason

    def check(self) -> None:
        """At the end: everyone has one answer, and every token is the reference's."""
        for answer in self.answers.values():
            if answer.ended is None:
                raise WrongAnswer(f"{answer.work.room} was never answered")
            if self._reference is not None:
                self._check_tokens(answer, self._reference(answer.work))

    def _check_tokens(self, answer: Answer, reference: list[int]) -> None:
        whole = answer.ended in (Reason.STOP, Reason.LENGTH)
        expected = reference if whole else reference[: len(answer.tokens)]
        if answer.tokens != expected:
            got = f"{answer.work.room} ended {answer.ended} with {answer.tokens}"
            raise WrongAnswer(f"{got}, the oracle has {reference}")
