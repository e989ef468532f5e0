"""Answers that nobody reads before their end: their tokens are told in portions, as each word costs the router some."""

from dataclasses import dataclass, field

from tandem.core.ids import Room
from tandem.core.messages import PORTION, Portion, Token


@dataclass(slots=True)
class _Kept:
    first: int = 0
    tokens: list[int] = field(default_factory=list)


class Portions:
    """What is kept back of each room that is told whole. Token 0 never is: it says that a prompt is computed."""

    def __init__(self) -> None:
        self._rooms: dict[Room, _Kept] = {}

    def begin(self, room: Room) -> None:
        """This one is told whole."""
        self._rooms[room] = _Kept()

    def next(self, token: Token) -> Token | Portion | None:
        """What is to be said for this token now: itself, those that were kept back with it, or nothing yet."""
        kept = self._rooms.get(token.room)
        if kept is None or token.index == 0 or token.logprobs is not None:
            return token
        if not kept.tokens:
            kept.first = token.index
        kept.tokens.append(token.token)
        return self.rest(token.room) if len(kept.tokens) == PORTION else None

    def rest(self, room: Room) -> Portion | None:
        """What is kept back: nothing is, from now on."""
        kept = self._rooms.get(room)
        if kept is None or not kept.tokens:
            return None
        tokens, kept.tokens = tuple(kept.tokens), []
        return Portion(room, kept.first, tokens)

    def forget(self, room: Room) -> None:
        """The room has gone."""
        self._rooms.pop(room, None)
