"""The kinds of faults. A run has a random subset of them; each counts, where it bites, how often it has acted."""

import enum
import random
from collections.abc import Callable, Iterable

from tandem.sim.clock import stream


class Fault(enum.Enum):
    """What can go wrong, by the name that the command line and the corpus use."""

    SLOW_LINKS = "slow-links"  # messages of some links take 50 times as long
    STALLS = "stalls"  # a rank takes no events for a while; they queue
    LOST_FACTS = "lost-facts"  # store updates that rank 0 never sees
    DOUBLED_FACTS = "doubled-facts"  # store updates that it sees twice
    LOST_ACKS = "lost-acks"  # acknowledgements that the column never sees
    FAILED_WRITES = "failed-writes"  # writes that land in part, and are known to be over
    UNSETTLED_WRITES = "unsettled-writes"  # writes that are given up, and still land later
    SLOW_WRITES = "slow-writes"  # writes that take 50 times as long
    REFUSED_VOTES = "refused-votes"  # a rank answers no where it could say yes
    CLOCK_SKEW = "clock-skew"  # every rank but 0 has another time, by up to hours
    PARTINGS = "partings"  # two ranks of different groups lose each other, and meet again
    ABORTS = "aborts"  # clients leave: at any time, and when their request is in a given state
    DEADLINES = "deadlines"  # requests with little time, some until just about when something else happens
    BURSTS = "bursts"  # all clients come at once
    DOUBLED_SUBMITS = "doubled-submits"  # the same request comes again
    LATE_SUBMITS = "late-submits"  # one group of a pair hears of a request long after the other
    TINY_POOLS = "tiny-pools"  # hardly more pages than one request needs
    FEW_ROOMS = "few-rooms"  # a group takes four requests at a time
    PAUSES = "pauses"  # an operator pauses a group, and resumes it
    DRAINS = "drains"  # an operator drains a group, and resumes it
    FLUSHES = "flushes"  # an operator flushes a group's cache
    KNOBS = "knobs"  # an operator turns chunk sizes and budgets
    CORRUPTED_WRITES = "corrupted-writes"  # writes that end well, but have changed a bit on their way
    RESTARTS = "restarts"  # a whole group ends, and comes back as another incarnation that knows nothing
    RELEASES = "releases"  # an operator has a group cut another one off
    ONE_WAY = "one-way"  # what a prefill group sends does not reach a decode group for a while; the other way it does
    CRASHES = "crashes"  # one rank dies, at a named point or any time; its fellows notice later
    ZOMBIES = "zombies"  # one rank freezes until it is taken for dead, and goes on when its group may have formed anew
    LEAVES = "leaves"  # one rank is told to end: its group finishes what it has, ends, and forms anew


class Swarm:
    """The faults of one run. They act until `heal`."""

    def __init__(self, seed: int, kinds: Iterable[Fault] = ()) -> None:
        self.acting = True
        self.on_strike: Callable[[Fault], None] | None = None
        self.counts: dict[Fault, int] = dict.fromkeys(kinds, 0)
        self._seed = seed
        self._strikes = {kind: self.stream(kind, "strikes") for kind in self.counts}

    def stream(self, kind: Fault, purpose: str) -> random.Random:
        """A random stream of this kind alone: leaving out another kind does not shift it."""
        return stream(self._seed, f"{kind.value}/{purpose}")

    def has(self, kind: Fault) -> bool:
        """Whether this kind acts now."""
        return self.acting and kind in self.counts

    def strikes(self, kind: Fault, share: float) -> bool:
        """Whether it hits this time, as it does in this share of cases; a hit is counted."""
        if not self.has(kind) or self._strikes[kind].random() >= share:
            return False
        self.counts[kind] += 1
        if self.on_strike is not None:
            self.on_strike(kind)
        return True

    def acted(self, kind: Fault) -> None:
        """It bit; for kinds whose place and time are drawn elsewhere."""
        if kind in self.counts:
            self.counts[kind] += 1

    def heal(self) -> None:
        """Nothing goes wrong from now on."""
        self.acting = False
