"""What this router knows of each group's work: what the group has said, and what was sent there since."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.cost import Decoding, Prefilling, Sight
from router.index import Hashed, Index
from router.placement import Route, prefills
from tandem.core.ids import Room
from tandem.core.members import Member
from tandem.core.messages import Load

HALF_S = 300.0
"""How far back work counts as done lately: after so long by half."""
USUAL_TOKENS = 1024.0
"""What a request of another router is thought to compute before we have seen any of our own."""
MEMORY = 0.05
"""The weight of the newest request in what is usual."""


@dataclass
class Known:
    """One group. Tokens are those of prompts."""

    index: Index = field(default_factory=Index)
    load: Load | None = None
    queued: int = 0  # sent by us and not computed yet
    computing: int = 0  # our requests of which the first token has not come
    open: int = 0  # our requests that need the group
    loads: int = 0  # times that it has told its load
    prompts_of_others: int = 0  # that wait or are computed, of other routers, when it last did
    others: int = 0  # requests of other routers, then
    taken: int = 0  # tokens that take room, of those that we have sent since
    _lately: float = 0.0
    _lately_at: float = 0.0

    def worked(self, tokens: int, now: float) -> None:
        """It is given so much to do."""
        self._lately = self.lately(now) + tokens
        self._lately_at = now

    def lately(self, now: float) -> float:
        """Tokens that it was given, the older ones counting ever less."""
        return self._lately * float(0.5 ** ((now - self._lately_at) / HALF_S))

    def on_load(self, load: Load) -> None:
        """What it says of itself."""
        self.load, self.taken = load, 0
        self.loads += 1
        there = load.waiting + load.running
        self.others, self.prompts_of_others = max(0, there - self.open), max(0, there - self.computing)

    def start_over(self) -> None:
        """Another epoch: what was said of the one before is not true any more. What is open there will end."""
        self.index.start_over()
        self.load, self.taken, self.others, self.prompts_of_others = None, 0, 0, 0
        self.loads += 1


@dataclass
class _Journey:
    """One attempt. What it has left behind at each group is taken back by and by."""

    first: str  # the group that computes its prompt
    last: str  # the one that decodes, if it is needed
    coming: dict[str, list[int]]  # pages, by group
    queued: int
    taken: int
    loads: int  # of the last group, when it was sent
    computed: bool = False


class Underway:
    """Attempts are `sent`, `computed` when their first token has come, and `ended`.

    `looks`: at what is cached. Else nothing counts as cached anywhere, and no prompt is hashed.
    """

    def __init__(self, *, looks: bool = True) -> None:
        self.looks = looks
        self._groups: defaultdict[str, Known] = defaultdict(Known)
        self._journeys: dict[Room, _Journey] = {}
        self._usual = USUAL_TOKENS

    def of(self, group: str) -> Known:
        """What is known of this group."""
        return self._groups[group]

    def forget(self, group: str) -> None:
        """It is gone. What is open there is left to end."""
        if self._groups[group].open:
            self._groups[group].start_over()
        else:
            del self._groups[group]

    def sent(self, room: Room, heads: Sequence[Member], hashed: Hashed, now: float, *, looks: bool = True) -> None:
        """An attempt goes to these groups, with this prompt. Not to look at it saves its hashing."""
        looks = looks and self.looks
        first, last = heads[0], heads[-1]
        prefill, decode = self._groups[first.group.name], self._groups[last.group.name]
        queued = len(hashed) - (self._cached(prefill.index, first, hashed) if looks else 0)
        self._usual += MEMORY * (queued - self._usual)
        prefill.queued += queued
        prefill.computing += 1
        prefill.worked(queued, now)
        prefill.open += 1
        uncached = len(hashed) - (self._cached(decode.index, last, hashed) if looks else 0)
        decode.taken += uncached
        if last is not first:
            decode.open += 1
            decode.worked(uncached, now)
        coming = {
            head.group.name: hashed.pages(head.limits.page_size) for head in heads if looks and head.limits.prefix_cache
        }
        for name, pages in coming.items():
            self._groups[name].index.coming(pages)
        self._journeys[room] = _Journey(first.group.name, last.group.name, coming, queued, uncached, decode.loads)

    def computed(self, room: Room) -> None:
        """Its first token has come: the prompt is computed, and the group has told what it cached."""
        journey = self._journeys.get(room)
        if journey is None or journey.computed:
            return
        journey.computed = True
        prefill = self._groups[journey.first]
        prefill.queued -= journey.queued
        prefill.computing -= 1
        self._arrived(journey, journey.first)

    def ended(self, room: Room) -> None:
        """It is over, at both groups."""
        self.computed(room)
        journey = self._journeys.pop(room, None)
        if journey is None:
            return
        for name in {journey.first: None, journey.last: None}:
            self._groups[name].open -= 1
            self._arrived(journey, name)
        decode = self._groups[journey.last]
        if decode.loads == journey.loads:
            decode.taken -= journey.taken

    def _arrived(self, journey: _Journey, group: str) -> None:
        self._groups[group].index.gone(journey.coming.pop(group, ()))

    # what a placement sees

    def sight(self, routes: Sequence[Route], hashed: Hashed, failures: dict[tuple[str, ...], int], now: float) -> Sight:
        """The snapshot for a prompt."""
        firsts = {route.names[0]: route.heads[0] for route in routes}
        lasts = {route.names[-1]: route.heads[-1] for route in routes}
        return Sight(
            len(hashed),
            self._usual,
            {name: self._prefilling(self._groups[name], head, hashed, now) for name, head in firsts.items()},
            {name: self._decoding(self._groups[name], head, hashed, now) for name, head in lasts.items()},
            failures,
        )

    def _prefilling(self, known: Known, head: Member, hashed: Hashed, now: float) -> Prefilling:
        # What a group decodes itself is no prompt that waits.
        others = known.prompts_of_others if prefills(head) else 0
        queued = known.queued + round(others * self._usual)
        return Prefilling(self._cached(known.index, head, hashed), queued, known.lately(now))

    def _decoding(self, known: Known, head: Member, hashed: Hashed, now: float) -> Decoding:
        free = known.load.free_pages * head.limits.page_size - known.taken if known.load is not None else 0
        requests = known.others + known.open
        return Decoding(self._cached(known.index, head, hashed), max(0, free), requests, known.lately(now))

    def _cached(self, index: Index, head: Member, hashed: Hashed) -> int:
        """Tokens of the prompt that the group need not compute, or be sent. The last one always is computed."""
        if not (self.looks and head.limits.prefix_cache):
            return 0
        size = head.limits.page_size
        return min(index.overlap(hashed.pages(size)) * size, (len(hashed) - 1) // size * size)
