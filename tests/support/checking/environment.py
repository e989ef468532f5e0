"""What surrounds the ranks of a model: routers, clients, the peer group, writes. A frozen value with choices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from checking.node import Taken

from tandem.core.effects import Compile, Effect, TellRouter
from tandem.core.events import Compiled, Event
from tandem.core.ids import LayerId, PageId, RankId, RequestId, Room
from tandem.core.inputs import Verdict
from tandem.core.messages import Done, Evicted, Hello, Region, Token
from tandem.core.requests import Reason, Sampling, Work
from tandem.sim.client import WrongAnswer
from tandem.sim.oracle import StrayAccess

Where = tuple[str, int]
"""A rank, by its group's name and its number."""
Held = Callable[[Where], dict[Room, frozenset[PageId]]]
"""The pages that each room holds on a rank."""

ROOMS = tuple(Room(RequestId(number), 1) for number in (1, 2, 3))
FAR_MS = 1_000_000
"""A deadline that nothing should wait for."""


class Choice(NamedTuple):
    """Something that the surroundings may do now: an event for one rank, and what they are afterwards."""

    then: "Environment"
    where: Where
    event: Event
    optional: bool = False  # it may as well never happen


class Answer(NamedTuple):
    """What a group has told the router of a room."""

    tokens: int = 0
    ended: Reason | None = None
    evicted: bool = False  # the last word, too: nobody comes back in these models


@dataclass(frozen=True)
class Environment:
    """What all surroundings have in common. Subclasses say what the other side does."""

    works: tuple[Work, ...]
    answers: tuple[tuple[tuple[str, Room], Answer], ...] = ()
    verdicts: frozenset[tuple[str, Verdict]] = frozenset()  # that frames have carried, of rooms not forgotten
    store_faults: int = 0  # updates that may still be lost or doubled
    hurries: int = 0  # times that time may pass although something else could happen
    spares: bool = True  # nothing happens to the other request: it gets all that it asks for
    compiling: tuple[tuple[Where, Room], ...] = ()  # grammars that a rank 0 waits for
    bad_grammars: int = 0  # that may turn out so
    evicts: bool = False  # who has to make room may be sent away

    def choices(self) -> Iterator[Choice]:
        """Everything that may happen next; subclasses know more. Grammars are ready in any order."""
        for where, room in self.compiling:
            left = tuple(one for one in self.compiling if one != (where, room))
            yield Choice(replace(self, compiling=left), where, Compiled(room, ok=True))
            if self.bad_grammars:
                bad = replace(self, compiling=left, bad_grammars=self.bad_grammars - 1)
                yield Choice(bad, where, Compiled(room, ok=False), optional=True)

    def told(self, where: Where, effect: Effect) -> Self:
        """A rank has said or posted something, other than to the router."""
        del where, effect
        return self

    def forgot(self, where: Where, room: Room) -> Self:
        """A rank keeps nothing of a room any more."""
        del where, room
        return self

    def check(self, held: Held) -> None:
        """Raises StrayAccess when pages that somebody may still touch have been given away."""

    def settled(self) -> bool:
        """Whether all transfers are over, for models that are not about them."""
        return True

    def missing(self) -> list[str]:
        """What must have happened at the end and has not."""
        return []

    def may_touch(self, where: Where) -> bool:
        """Whether an event may come to this rank from here before it has taken another step of its ring."""
        del where
        return True

    def heard(self, where: Where, taken: Taken) -> Self:
        """Keep what came out of a rank. Raises WrongAnswer for what no router may be told."""
        after = self
        for verdict in taken.verdicts:
            after = after._issued(where[0], verdict)
        for effect in taken.told:
            if isinstance(effect, TellRouter):
                after = after._answered(where[0], effect.message)
            elif isinstance(effect, Compile):
                after = replace(after, compiling=tuple(sorted((*after.compiling, (where, effect.room)))))
            else:
                after = after.told(where, effect)
        for room in taken.forgotten:
            if where[1] == 0:
                kept = frozenset(issued for issued in after.verdicts if issued[1].room != room)
                after = replace(after, verdicts=kept)
            after = after.forgot(where, room)
        return after

    def _issued(self, group: str, verdict: Verdict) -> Self:
        if (group, verdict) in self.verdicts:
            raise WrongAnswer(f"{group} is given {verdict} twice")
        return replace(self, verdicts=self.verdicts | {(group, verdict)})

    def _answered(self, group: str, message: Token | Done | Evicted) -> Self:
        answers = dict(self.answers)
        key = group, message.room
        before = answers.get(key, Answer())
        if before.ended is not None or before.evicted:
            raise WrongAnswer(f"{message} from {group} after its last word")
        match message:
            case Token(index=index) if index != before.tokens:
                raise WrongAnswer(f"{message} from {group} after {before.tokens} tokens")
            case Token():
                answers[key] = before._replace(tokens=before.tokens + 1)
            case Done(reason=reason):
                answers[key] = before._replace(ended=reason)
            case Evicted() if not self.evicts:
                raise WrongAnswer(f"{message} from {group}: there is room for everybody in the end")
            case Evicted():
                answers[key] = before._replace(evicted=True)
        return replace(self, answers=tuple(sorted(answers.items())))

    def answer(self, group: str, room: Room) -> Answer:
        """What a group has told the router of a room."""
        return dict(self.answers).get((group, room), Answer())


def works(peer: str, prompts: tuple[int, ...], tokens: tuple[int, ...], grammar: str = "") -> tuple[Work, ...]:
    """A small request for each room: tokens of its prompt, and tokens to generate."""
    shapes = zip(ROOMS, prompts, tokens, strict=False)
    return tuple(
        Work(room, tuple(range(1, prompt + 1)), most, (), Sampling(), peer, grammar=grammar)
        for room, prompt, most in shapes
    )


def hello(group: str, rank: int, layers: tuple[int, int], size: int = 1) -> Hello:
    """What a rank that owns these layers says of itself."""
    region = Region(0, LayerId(layers[0]), LayerId(layers[1]), 1, 1)
    return Hello(group, RankId(rank), size, 1, "", "", "", region)


def must_hold(held: dict[Room, frozenset[PageId]], room: Room, pages: frozenset[PageId], what: str) -> None:
    """Raises StrayAccess when a room's pages are not all its own any more."""
    if strays := pages - held[room]:
        raise StrayAccess(f"pages {sorted(strays)} of {room} are {what}, but have been given away")
