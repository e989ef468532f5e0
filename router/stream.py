"""One request's tokens, from two groups, put into one order and turned into text and one end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from router.errors import ApiError, ended_with, violation
from router.ports import Detokenizer
from router.stops import Stops
from tandem.core.config import RoleName
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

    def __init__(
        self, work: Work, names: dict[RoleName, str], vocab: int, detokenizer: Detokenizer, stops: Sequence[str]
    ) -> None:
        self._work = work
        self._vocab = vocab
        self._names = names
        self._detokenizer = detokenizer
        self._stops = Stops(stops)
        self._blames_peer: RoleName | None = None
        self.handed_over = False
        """Decode has generated a token of its own, so it has all of the prompt's KV: prefill is needed no more."""
        self.count = 0
        """Tokens delivered, an end-of-sequence token included: the client's `completion_tokens`."""
        self.end: Finished | Failed | None = None

    @property
    def awaits_reason(self) -> bool:
        """One group ended because the other one did; that one has not said why yet."""
        return self.end is None and self._blames_peer is not None

    def on_token(self, role: RoleName, token: Token) -> str:
        """The text to deliver. Drops another attempt's tokens and those that came before, from either group."""
        if self.end or token.room != self._work.room or token.index < self.count:
            return ""
        if token.index > self.count:
            self._violated(role, f"sent token {token.index} after {self.count} tokens")
            return ""
        if not 0 <= token.token < self._vocab:
            self._violated(role, f"sent token id {token.token}, of a vocabulary of {self._vocab}")
            return ""
        self.handed_over |= role is RoleName.DECODE and token.index > 0
        self.count += 1
        reason = ending(self._work, self.count, token.token)
        text = "" if reason is Reason.STOP else self._detokenizer.push(token.token)
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
        if self.end or done.room != self._work.room:
            return
        waits = done.reason is Reason.PEER_ENDED and len(self._names) == 2 and self._blames_peer in (None, role)
        if waits:
            self._blames_peer = role
        else:
            self.end = Failed(ended_with(done.reason, role, self._names[role]))

    def no_reason_came(self) -> None:
        """The wait for the other group's reason is over."""
        if self._blames_peer is not None and self.end is None:
            self.end = Failed(ended_with(Reason.PEER_ENDED, self._blames_peer, self._names[self._blames_peer]))

    def fail(self, error: ApiError) -> None:
        """End it from outside: a lost group, the deadline, the client."""
        self.end = self.end or Failed(error)

    def _violated(self, role: RoleName, what: str) -> None:
        self.end = Failed(violation(role, self._names[role], what))
