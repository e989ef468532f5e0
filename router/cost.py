"""What a request costs on each route, in one unit: tokens of prompt to compute. A pure function of a snapshot.

    compute    tokens of the prompt that the prefill group has not cached                                     x 1
    queue      tokens that wait to be computed there before this request                                      x 1/20
    balance    tokens computed there lately, more than on the prefill group with the fewest                   x 1/50
               and those that are more than the mean of all and four usual prompts                            x 1/2
    transfer   tokens whose KV the decode group has not cached: they are sent, and take room there            x 1/16
    memory     tokens of that which find no free page on the decode group: others must end first              x 1
    crowd      requests on the decode group, each of which makes every step longer                            x 32
    spread     tokens sent there lately, more than to the decode group with the fewest                        x 1/800
    edge       failures in a row of the groups and of the edge between them, unless they are long ago         x 2,048

Why a token that waits weighs so much less than one that is computed: waiting delays this request alone. A token that is
computed for a second time delays all that come after it, and leaves the prefix on one more group, where it drives
another one out. What keeps a group with a popular prefix from getting everything is the second line of `balance`: some
prompts more than the others is chance, far more is not. The weights of the first three were chosen on the traces of
`tandem bench placement`, one set for all: the hits that are lost to them are some hundredths, and the time to the first
token changes little between a tenth and a thirtieth.
`transfer` is what KV takes on the wire against what it takes to compute it, for a model of some eight billion
parameters at 25 GB/s; `spread` is to transfer what balance is to compute.
"""

from collections.abc import Mapping, Sequence

import msgspec

from router.placement import Route

QUEUE = 1 / 20
BALANCE = 1 / 50
OVER, CHANCE = 1 / 2, 4
"""The weight of what is more than the mean, and how many usual prompts more are chance."""
TRANSFER = 1 / 16
CROWD = 32
EDGE = 2048


class Prefilling(msgspec.Struct, frozen=True):
    """What is known of who computes prompts, in tokens."""

    cached: int  # of this prompt
    queued: int
    lately: float


class Decoding(msgspec.Struct, frozen=True):
    """What is known of who decodes, in tokens."""

    cached: int  # of this prompt
    free: int
    requests: int
    lately: float


class Sight(msgspec.Struct, frozen=True):
    """The snapshot: all that a placement depends on. `failures` are by the names of a route."""

    prompt: int  # tokens
    usual: float  # tokens that a request leaves to compute
    prefilling: Mapping[str, Prefilling]
    decoding: Mapping[str, Decoding]
    failures: Mapping[tuple[str, ...], int]


class Parts(msgspec.Struct, frozen=True):
    """One route's cost: see above for each part."""

    compute: float
    queue: float
    balance: float
    transfer: float
    memory: float
    crowd: float
    spread: float
    edge: float

    @property
    def cost(self) -> float:
        """Tokens of prompt to compute."""
        return float(sum(msgspec.structs.astuple(self)))

    @property
    def load(self) -> float:
        """The part that does not depend on what is cached."""
        return self.queue / QUEUE + self.crowd + self.edge


class Ranked(msgspec.Struct, frozen=True):
    """A route and what it costs."""

    route: Route
    parts: Parts


def ranked(routes: Sequence[Route], sight: Sight) -> list[Ranked]:
    """The cheapest first; of equals, the first by name."""
    prefilling = [one.lately for one in sight.prefilling.values()]
    most = sum(prefilling) / max(1, len(prefilling)) + CHANCE * sight.usual
    common = Common(
        min(prefilling, default=0.0), most, min((one.lately for one in sight.decoding.values()), default=0.0)
    )
    found = [Ranked(route, parts_of(route, sight, common)) for route in routes]
    return sorted(found, key=lambda one: (one.parts.cost, one.route.names))


class Common(msgspec.Struct, frozen=True):
    """What was done lately: the least by a prefill group, the most by chance, the least sent to a decode group."""

    least: float
    most: float
    least_sent: float


def parts_of(route: Route, sight: Sight, common: Common) -> Parts:
    """A group that does both transfers nothing, and its KV has been counted where it is computed."""
    prefill, decode = sight.prefilling[route.names[0]], sight.decoding[route.names[-1]]
    apart = len(route.names) > 1
    uncached = sight.prompt - decode.cached
    return Parts(
        compute=sight.prompt - prefill.cached,
        queue=QUEUE * prefill.queued,
        balance=BALANCE * (prefill.lately - common.least) + OVER * max(0.0, prefill.lately - common.most),
        transfer=TRANSFER * uncached if apart else 0.0,
        memory=max(0, uncached - decode.free),
        crowd=CROWD * decode.requests,
        spread=TRANSFER * BALANCE * (decode.lately - common.least_sent) if apart else 0.0,
        edge=EDGE * sight.failures.get(route.names, 0),
    )
