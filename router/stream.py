"""One request's tokens, whoever computes them, put into one order and turned into text and one end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from router.attempt import Attempt
from router.errors import ApiError, ended_with, violation
from router.logprobs import Scores
from router.placement import Route
from router.ports import Detokenizer
from router.stops import Stops
from tandem.core.config import RoleName
from tandem.core.ids import Room
from tandem.core.messages import Done, Portion, Token
from tandem.core.requests import NO_LOGPROBS, Reason, Work, ending


@dataclass(frozen=True)
class Finished:
    """The request ended as it should. `by_stop_string`: the groups do not know it yet."""

    reason: Literal["stop", "length"]
    by_stop_string: bool = False


FINISHED = ("stop", "length")
"""The reasons of Finished."""


@dataclass(frozen=True)
class Failed:
    """The request has no good end."""

    error: ApiError


class Stream:
    """Feed it what the groups say; it returns new text and sets `end` once, and only once.

    The end follows from the tokens alone, by the groups' own rule: their Done is news only when they failed.
    """

    def __init__(self, attempt: Attempt, vocab: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.attempt = attempt
        self.work = attempt.work
        """What the client asked for, whatever attempts make of it."""
        self._vocab = vocab
        self._detokenizer = detokenizer
        self._stops = Stops(stops)
        self.has_stops = bool(stops)
        """Some text ends it, which the groups do not see."""
        self.scores = None if self.work.sampling.logprobs == NO_LOGPROBS else Scores()
        """Of its tokens, if the client asked for them."""
        self.cached = 0
        """Tokens of the prompt that prefill did not have to compute."""
        self._tokens: list[int] = []
        self._blames_peer: RoleName | None = None
        self.handed_over = False
        """Decode has told a token, so it has all of the prompt's KV: prefill is needed no more."""
        self.end: Finished | Failed | None = None

    @property
    def count(self) -> int:
        """Tokens delivered, an end-of-sequence token included: the client's `completion_tokens`."""
        return len(self._tokens)

    def remaining(self) -> Work:
        """What is left to compute, for the next attempt. A token depends on its position alone, so the text goes on."""
        room = self.attempt.room
        return msgspec.structs.replace(
            self.work,
            room=Room(room.rid, room.attempt + 1),
            prompt=(*self.work.prompt, *self._tokens),
            max_tokens=self.work.max_tokens - self.count,
            generated=self.work.generated + self.count,
        )

    def go_on(self, route: Route) -> None:
        """The groups had to give the request up: what they still say is not heard, the next attempt is."""
        self.attempt = Attempt(self.remaining(), route, self.count)
        self._blames_peer = None
        self.handed_over = False

    @property
    def awaits_reason(self) -> bool:
        """One group ended because the other one did; that one has not said why yet."""
        return self.end is None and self._blames_peer is not None

    def needs(self, role: RoleName) -> bool:
        """Whether the group of this role still has something to do for it."""
        return self.end is None and (role is not RoleName.PREFILL or not self.handed_over)

    def on_token(self, role: RoleName, token: Token) -> str:
        """The text to deliver. Drops another attempt's tokens and those that came before, from either group."""
        if token.cached and token.room == self.attempt.room and not self.attempt.first:
            self.cached = token.cached
        if not self._is_new(role, token.room, token.index, 1) or not self._exist(role, token.token, token.token):
            return ""
        if self.scores is not None and token.logprobs is None:
            self._violated(role, f"sent token {token.index} without its log-probabilities")
            return ""
        self._tokens.append(token.token)
        reason = ending(self.work, len(self._tokens), token.token)
        text = "" if reason is Reason.STOP else self._detokenizer.push(token.token)
        if self.scores is not None and token.logprobs is not None and reason is not Reason.STOP:
            if reason is not None:
                text += self._detokenizer.finish()
            self.scores.add(token.token, token.logprobs, len(text))
        return text if reason is None and not self.has_stops else self._text(text, reason)

    def on_portion(self, role: RoleName, portion: Portion) -> str:
        """The same for tokens that follow each other."""
        tokens = portion.tokens
        if not self._is_new(role, portion.room, portion.first, len(tokens)):
            return ""
        if not self._exist(role, min(tokens), max(tokens)):
            return ""
        if self.scores is not None:
            self._violated(role, f"sent token {portion.first} without its log-probabilities")
            return ""
        known = len(self._tokens)
        fresh = tokens[known - self.attempt.first - portion.first :][: self.work.max_tokens - known]
        stops = [fresh.index(token) + 1 for token in self.work.stop_ids if token in fresh]
        fresh = fresh[: min(stops, default=len(fresh))]
        self._tokens += fresh
        reason = ending(self.work, len(self._tokens), fresh[-1])
        return self._text(self._detokenizer.push_all(fresh[:-1] if reason is Reason.STOP else fresh), reason)

    def _is_new(self, role: RoleName, room: Room, index: int, count: int) -> bool:
        """Whether some of so many tokens from this one on were not known."""
        attempt = self.attempt
        if self.end or room != attempt.room:
            return False
        if role is RoleName.DECODE:
            self.handed_over = True
        known = len(self._tokens) - attempt.first
        if index > known:
            self._violated(role, f"sent token {index} after {known} tokens")
            return False
        return index + count > known

    def _exist(self, role: RoleName, lowest: int, highest: int) -> bool:
        """Whether all tokens between these may be told."""
        if lowest >= 0 and highest < self._vocab:
            return True
        self._violated(role, f"sent token id {lowest if lowest < 0 else highest}, of a vocabulary of {self._vocab}")
        return False

    def _text(self, text: str, reason: Reason | None) -> str:
        """What of the text of the newest tokens can be told yet; sets the end if there is a reason for it."""
        if reason is not None:
            text += self._detokenizer.finish()
        text = self._stops.push(text)
        if self._stops.hit:
            self.end = Finished("stop", by_stop_string=True)
        elif reason is not None:
            text += self._stops.finish()
            self.end = Finished("stop" if reason is Reason.STOP else "length")
        return text

    def on_done(self, role: RoleName, done: Done) -> None:
        """A group's last word. A good end was seen in the tokens before; a PEER_ENDED waits for the real reason."""
        if self.end or done.room != self.attempt.room:
            return
        groups = self.attempt.groups
        waits = done.reason is Reason.PEER_ENDED and len(groups) == 2 and self._blames_peer in (None, role)
        if waits:
            self._blames_peer = role
        else:
            self.end = Failed(ended_with(done.reason, role, groups[role]))

    def fail(self, error: ApiError) -> None:
        """End it from outside: a lost group, the deadline, the client."""
        self.end = self.end or Failed(error)

    def _violated(self, role: RoleName, what: str) -> None:
        self.end = Failed(violation(role, self.attempt.groups[role], what))
