"""One request's tokens, whoever computes them, put into one order and turned into text and one end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from router.attempt import Attempt
from router.errors import ApiError, ended_with, violation
from router.placement import Route
from router.ports import Detokenizer
from router.stops import Stops
from tandem.core.config import RoleName
from tandem.core.ids import Room
from tandem.core.messages import Done, Token
from tandem.core.requests import Reason, Work, ending


@dataclass(frozen=True)
class Finished:
    """The request ended as it should. `by_stop_string`: the groups do not know it yet."""

    reason: Literal["stop", "length"]
    by_stop_string: bool = False


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
        self._tokens: list[int] = []
        self._blames_peer: RoleName | None = None
        self.handed_over = False
        """Decode has generated a token of its own, so it has all of the prompt's KV: prefill is needed no more."""
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
        position = self.attempt.first + token.index
        if self.end or token.room != self.attempt.room or position < self.count:
            return ""
        if position > self.count:
            self._violated(role, f"sent token {token.index} after {self.count - self.attempt.first} tokens")
            return ""
        if not 0 <= token.token < self._vocab:
            self._violated(role, f"sent token id {token.token}, of a vocabulary of {self._vocab}")
            return ""
        self.handed_over |= role is RoleName.DECODE and token.index > 0
        self._tokens.append(token.token)
        return self._text(token.token)

    def _text(self, token: int) -> str:
        """The token's text, as far as it can be told yet; sets the end if it was the last one."""
        reason = ending(self.work, self.count, token)
        text = "" if reason is Reason.STOP else self._detokenizer.push(token)
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
