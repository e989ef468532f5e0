"""What a seed stands for: a cluster, its faults, its requests, and when everything heals."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from tandem.core.config import Group, Limits, RoleName, split_layers
from tandem.core.ids import RequestId, Room
from tandem.core.requests import NO_LOGPROBS, Sampling, Work, pages_for
from tandem.engine.grammar import JSON_OBJECT
from tandem.engine.model import FAKE_EOS
from tandem.sim.clock import between, stream
from tandem.sim.faults import Fault
from tandem.sim.router import PATIENT_MS
from tandem.sim.routes import Route, routes
from tandem.sim.world import Cluster, Pace

LAYERS = 8
CONTEXT = 128
SIZES = (1, 2, 3, 4, 8)
MOST_REQUESTS = 24
PAIR = ("p0", "d0")
ALONE = "c0"
FEW_ROOMS = 4
ALONE_SHARE = 0.2
"""Of the runs have one colocated group instead of a pair."""
SEVERAL_SHARE = 0.2
"""Have two groups of each role, unless the variant says how many: any two that fit serve a request."""
CROWDED_SHARE = 0.15
"""Of the runs have many long answers in few pages: some have to make room for others, again and again."""
DISCORD_SHARE = 0.15
"""Of the runs have writes that are given up, more faults around them, and one side that waits long for the other."""
SLOT_ROWS = (1, 1, 1, 2, 8)
"""Decode requests that share a slot before another one is begun: where that is one, ticks overlap most."""
IN_CROWDS = (Fault.FLUSHES,)
IN_DISCORD = (Fault.PARTINGS, Fault.RESTARTS, Fault.RELEASES, Fault.LATE_SUBMITS, Fault.DRAINS)
STOPPING = (
    Fault.UNSETTLED_WRITES,
    Fault.CORRUPTED_WRITES,
    Fault.DRAINS,
    Fault.FEW_ROOMS,
    Fault.TINY_POOLS,
    Fault.RESTARTS,
    Fault.CRASHES,
    Fault.ZOMBIES,
    Fault.LEAVES,
)
"""Faults after which there is less to do."""
QUIESCE_MS = (20, 100, 400)
HANDSHAKES_US = (200, 3_000, 20_000)
FENCES_US = (500, 5_000, 30_000)
"""At most."""
LATE_US = (50_000, 200_000)
LEFT_SHARE = 0.3
"""Of the runs see, when all is at rest, whether a client that leaves decode makes somebody cut a peer off."""
LEAVING_US = (0, 8_000)
"""After a probe was submitted, until its client leaves, if it does."""
CHECKSUM_SAMPLES = (0, 1, 4)
LOOKING_BACK_SHARE = 0.2
"""Of the runs have requests whose tokens depend on those before, and grammars that take their time."""
BAD_GRAMMAR = '{"type":"nothing"}'
GRAMMARS = (JSON_OBJECT, '{"type":"array"}', '{"enum":[1,2]}', BAD_GRAMMAR)


@dataclass(frozen=True, slots=True)
class Variant:
    """What to leave out of a seed's case, or to have more of. The rest is drawn as if nothing were changed."""

    only: tuple[int, ...] | None = None  # requests by number; None: all
    without: tuple[Fault, ...] = ()
    ranks: tuple[int, int] | None = None  # of each prefill and decode group; a colocated one takes the latter
    pairs: int | None = None  # of groups, or so many colocated ones; None: as drawn


WHOLE = Variant()


@dataclass(frozen=True, slots=True)
class Request:
    """One client: what it asks for, when, and what it or the way to the groups does wrong."""

    work: Work
    at_us: int
    groups: Route
    remaining_ms: int = PATIENT_MS
    retries: int = 0  # of a hand-over
    late_us: Mapping[str, int] = field(default_factory=dict)
    again_us: int | None = None
    leaves_us: int | None = None
    told: tuple[str, ...] = ()  # groups that hear of its leaving

    def after(self, us: int) -> "Request":
        """The same, so much later."""
        leaves_us = None if self.leaves_us is None else us + self.leaves_us
        return replace(self, at_us=us + self.at_us, leaves_us=leaves_us)

    @property
    def number(self) -> int:
        """`r7` in stories and on the command line."""
        return int(self.work.room.rid)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that is decided before a run begins."""

    seed: int
    cluster: Cluster
    kinds: tuple[Fault, ...]
    requests: tuple[Request, ...]
    heal_us: int
    probes: tuple[Request, ...]  # when all is at rest again

    @property
    def pairs(self) -> int:
        """Groups of each role."""
        return sum(group.role is self.cluster.groups[0].role for group in self.cluster.groups)

    def describe(self) -> str:
        """The cluster and its faults, in words."""
        groups = " and ".join(f"{group.name} with layers {group.partition}" for group in self.cluster.groups)
        faults = ", ".join(kind.value for kind in self.kinds) or "none"
        limits = f"{self.cluster.limits}, quiesce_ms of decode {self.cluster.quiesce_ms}"
        return f"{len(self.requests)} requests to {groups}; {limits}; faults: {faults}"


def draw(seed: int, variant: Variant = WHOLE) -> Case:
    """The case of a seed."""
    crowd, discord = stream(seed, "crowd"), stream(seed, "discord")
    crowded, discordant = crowd.random() < CROWDED_SHARE, discord.random() < DISCORD_SHARE
    drawn = [*_kinds(stream(seed, "swarm"))]
    drawn += _half(IN_CROWDS, crowd) if crowded else []
    drawn += [Fault.UNSETTLED_WRITES, *_half(IN_DISCORD, discord)] if discordant else []
    kinds = tuple(kind for kind in Fault if kind in drawn and kind not in variant.without)
    rng = stream(seed, "cluster")
    heal_us = 1000 * rng.choice([30, 100, 100, 300, 3_000])
    pairs = variant.pairs or 1 + (stream(seed, "pairs").random() < SEVERAL_SHARE)
    cluster = _paired(_cluster(rng, kinds, variant.ranks), seed, pairs, drawn=variant.ranks is None)
    cluster = _careful(cluster, kinds, stream(seed, "care"))
    if discordant:
        cluster = _discordant(cluster, discord)
    count = rng.choice([1, 8, 8, MOST_REQUESTS])
    if crowded:
        count, heal_us = max(8, count), max(100_000, heal_us)
        cluster = replace(cluster, limits=_crowded(cluster.limits, crowd))
    slot_rows = stream(seed, "packing").choice(SLOT_ROWS)
    cluster = replace(cluster, limits=msgspec.structs.replace(cluster.limits, slot_rows=slot_rows))
    requests = Requests(seed, kinds, heal_us, routes(cluster.groups), crowded=crowded)
    every = requests.draw(count)
    kept = tuple(request for request in every if variant.only is None or request.number in variant.only)
    return Case(seed, cluster, kinds, kept, heal_us, requests.probes(count + 1))


def four_by_four(seed: int) -> Case:
    """A case of one size, some 300 ticks of 4 prefill and 4 decode ranks: what the simulator's speed is measured by."""
    kinds = tuple(kind for kind in _kinds(stream(seed, "swarm")) if kind not in STOPPING)
    limits = Limits(
        page_size=4, num_pages=400, context=CONTEXT, chunked_prefill_size=16, max_prefill_tokens=64, host_pages=100
    )
    heal_us = 100_000
    groups = tuple(
        Group(role, name, split_layers(LAYERS, 4))
        for role, name in zip((RoleName.PREFILL, RoleName.DECODE), PAIR, strict=True)
    )
    requests = Requests(seed, kinds, heal_us, (PAIR,))
    return Case(seed, Cluster(groups, limits), kinds, requests.draw(18), heal_us, requests.probes(19))


def _kinds(rng: random.Random) -> tuple[Fault, ...]:
    """Each run has its own subset: together, faults hide each other."""
    share = rng.choice([0.1, 0.25, 0.5])
    return tuple(kind for kind in Fault if rng.random() < share)


def _half(kinds: Iterable[Fault], rng: random.Random) -> list[Fault]:
    return [kind for kind in kinds if rng.random() < 0.5]


def _discordant(cluster: Cluster, rng: random.Random) -> Cluster:
    """One side soon cuts the other off, which has long not lost its patience when they meet again."""
    patience = rng.sample((QUIESCE_MS[0], QUIESCE_MS[-1]), 2)
    limits = msgspec.structs.replace(cluster.limits, quiesce_ms=patience[0])
    pace = replace(cluster.pace, handshake_us=(0, HANDSHAKES_US[0]))
    return replace(cluster, limits=limits, quiesce_ms=patience[1], pace=pace)


def _cluster(rng: random.Random, kinds: tuple[Fault, ...], ranks: tuple[int, int] | None) -> Cluster:
    drawn = rng.choice(SIZES), rng.choice(SIZES)
    prefill, decode = ranks or drawn
    page_size = rng.choice([1, 4, 16])
    plenty, tiny = rng.choice([400, 2_000]), rng.choice([100, 130, 200])
    limits = Limits(
        page_size=page_size,
        num_pages=pages_for(tiny if Fault.TINY_POOLS in kinds else plenty, page_size),
        context=CONTEXT,
        chunked_prefill_size=rng.choice([4, 16, 128]),
        max_prefill_tokens=rng.choice([16, 64, 256]),
        async_depth=rng.choice([0, 1, 2]),
        slot_rows=1,
        max_rooms=FEW_ROOMS if Fault.FEW_ROOMS in kinds else 1024,
        host_pages=pages_for(rng.choice([0, 40, 4_000]), page_size),
        prefix_cache=rng.random() < 0.7,
        dynamic_chunking=rng.random() < 0.3,
        transfer_consensus="ring" if rng.random() < 0.4 else "store",
    )
    partitions = stream(rng.getrandbits(32), "partitions")
    if rng.random() < ALONE_SHARE:
        return Cluster((Group(RoleName.COLOCATED, ALONE, _partition(partitions, decode)),), limits)
    groups = (
        Group(RoleName.PREFILL, "p0", _partition(partitions, prefill)),
        Group(RoleName.DECODE, "d0", _partition(partitions, decode)),
    )
    return Cluster(groups, limits)


def _careful(cluster: Cluster, kinds: tuple[Fault, ...], rng: random.Random) -> Cluster:
    """How long each side waits for a peer's word, how soon it is met again, and how many blocks are compared.

    All are where some get corrupted.
    """
    patience, sample = rng.choices(QUIESCE_MS, k=2), rng.choice(CHECKSUM_SAMPLES)
    if Fault.CORRUPTED_WRITES in kinds:
        sample = 1
    limits = msgspec.structs.replace(cluster.limits, quiesce_ms=patience[0], checksum_sample=sample)
    pace = Pace(handshake_us=(0, rng.choice(HANDSHAKES_US)), fence_us=(0, rng.choice(FENCES_US)))
    return replace(cluster, limits=limits, quiesce_ms=patience[1], pace=pace)


def _paired(cluster: Cluster, seed: int, pairs: int, *, drawn: bool) -> Cluster:
    """So many groups of each role: further ones have layers of their own, and sizes if those are drawn."""
    groups = list(cluster.groups)
    for number in range(1, pairs):
        rng = stream(seed, f"pair {number}")
        for first in cluster.groups:
            size = rng.choice(SIZES) if drawn else first.size
            groups.append(Group(first.role, f"{first.name[0]}{number}", _partition(rng, size)))
    return replace(cluster, groups=tuple(groups))


def _crowded(limits: Limits, rng: random.Random) -> Limits:
    """Pages for one long answer at least, and host memory for some more or for none."""
    pages, host_pages = (
        pages_for(rng.choice(tokens), limits.page_size) for tokens in ([130, 200, 300], [0, 100, 4_000])
    )
    return msgspec.structs.replace(limits, num_pages=pages, host_pages=host_pages)


def _partition(rng: random.Random, parts: int) -> tuple[int, ...]:
    if rng.random() < 0.5:
        return split_layers(LAYERS, parts)
    cuts = sorted(rng.sample(range(1, LAYERS), parts - 1))
    return tuple(high - low for low, high in zip([0, *cuts], [*cuts, LAYERS], strict=True))


class Requests:
    """Draws the clients of a seed, each from a stream of its own."""

    def __init__(
        self, seed: int, kinds: tuple[Fault, ...], heal_us: int, routes: tuple[Route, ...], *, crowded: bool = False
    ) -> None:
        self._seed = seed
        self._kinds = kinds
        self._heal_us = heal_us
        self._routes = routes
        self._crowded = crowded
        self._talkative = crowded or stream(seed, "talk").random() < 0.4
        self._lengths = [60, 80, 90, 100] if crowded else [8, 30, 60, 100] if self._talkative else [1, 2, 8, 30]
        texts = stream(seed, "texts")
        self._beginnings = [_text(texts, 90) for _ in range(3)]  # that prompts share
        bursts = stream(seed, "bursts")
        self._look_back = stream(seed, "looking back").random() < LOOKING_BACK_SHARE
        self._bursts_us = [bursts.randrange(heal_us) for _ in range(bursts.choice([1, 1, 3]))]
        self._spread_us = stream(seed, "spread").choice([20_000, 80_000 if crowded else heal_us * 4 // 5])

    def draw(self, count: int) -> tuple[Request, ...]:
        """All clients."""
        requests = [self._request(number) for number in range(1, count + 1)]
        edges_us = [us for one in requests for us in (one.at_us, one.leaves_us, one.again_us) if us is not None]
        return tuple(self._hurried(request, [*edges_us, self._heal_us]) for request in requests)

    def probes(self, first: int) -> tuple[Request, ...]:
        """One more for each route, to see that it still serves; sometimes one more for each pair that soon leaves."""
        rng = stream(self._seed, "probes")
        left = rng.random() < LEFT_SHARE
        pairs = [route for route in self._routes if left and len(route) > 1]
        leaves_us = [*(None for _ in self._routes), *(between(rng, LEAVING_US) for _ in pairs)]
        asked = zip([*self._routes, *pairs], leaves_us, strict=True)
        return tuple(self._probe(number, *one) for number, one in enumerate(asked, first))

    def _probe(self, number: int, route: Route, leaves_us: int | None) -> Request:
        most = 4 if leaves_us is None else 30
        work = Work(Room(RequestId(number), 1), self._beginnings[0][:20], most, (FAKE_EOS,), Sampling(), None)
        return Request(work, 0, route, leaves_us=leaves_us, told=route[-1:])

    def _request(self, number: int) -> Request:
        rng = stream(self._seed, f"request {number}")
        work = self._asking(number, self._work(rng, number))
        groups = stream(self._seed, f"route {number}").choice(self._routes)
        at_us = rng.randint(0, self._spread_us)
        if Fault.BURSTS in self._kinds:
            at_us = self._bursts_us[number % len(self._bursts_us)]
        late_us = {}
        late = rng.random() < 0.3 and Fault.LATE_SUBMITS in self._kinds
        if late and work.max_tokens > 1 and len(groups) > 1:  # where one is late, the other answers
            late_us = {rng.choice(groups): rng.choice(LATE_US)}
        again_us = at_us + rng.choice([0, rng.randint(0, 100_000)])
        comes_again = rng.random() < 0.3 and Fault.DOUBLED_SUBMITS in self._kinds
        leaves_us = at_us + rng.choice([rng.randint(0, 2_000), rng.randint(0, 100_000)])
        leaves = rng.random() < 0.3 and Fault.ABORTS in self._kinds
        told = rng.choice([groups, groups, groups[:1], groups[-1:]])
        if work.max_tokens == 1 or late_us:  # one is enough, unless it is told before it has heard of the request
            told = groups
        return Request(
            work,
            at_us,
            groups,
            retries=rng.choice([0, 1, 2]),
            late_us=late_us,
            again_us=again_us if comes_again else None,
            leaves_us=leaves_us if leaves else None,
            told=told,
        )

    def _work(self, rng: random.Random, number: int) -> Work:
        shared = rng.choice(self._beginnings)[: rng.choice([0, 0, 16, rng.randint(1, 90)])]
        own = _text(rng, rng.choice([1, 5, rng.randint(1, 90)]))
        if self._talkative:  # they begin small and grow: where pages are few, some have to make room
            shared, own = shared[:8], own[:8]
        return Work(
            Room(RequestId(number), 1),
            (shared + own)[:90],
            rng.choice(self._lengths),
            (FAKE_EOS,) if rng.random() < (0.2 if self._crowded else 0.8) else (),
            Sampling(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(32)),
            None,
            priority=rng.choice([0, 0, 0, -1, 2]),
            salt=rng.choice(["", "", "", "a", "b"]),
        )

    def _asking(self, number: int, work: Work) -> Work:
        """Some want to know how likely tokens are. In some runs, some have penalties or a grammar."""
        rng = stream(self._seed, f"asking {number}")
        sampling = msgspec.structs.replace(work.sampling, logprobs=rng.choice([NO_LOGPROBS, NO_LOGPROBS, 0, 3]))
        if self._look_back:
            penalties = {"presence_penalty": 1.0, "frequency_penalty": -0.5, "repetition_penalty": 1.2}
            sampling = msgspec.structs.replace(sampling, **{name: penalties[name] for name in _some(penalties, rng)})
        grammar = rng.choice(GRAMMARS) if self._look_back and rng.random() < 0.4 else ""
        return msgspec.structs.replace(work, sampling=sampling, grammar=grammar)

    def _hurried(self, request: Request, edges_us: list[int]) -> Request:
        """Some have little time, or until within some milliseconds of something else."""
        rng = stream(self._seed, f"deadline {request.number}")
        edge_ms = (rng.choice(edges_us) - request.at_us) // 1000 + rng.randint(-2, 2)
        remaining_ms = rng.choice([rng.randint(0, 50), max(0, edge_ms)])
        hurried = rng.random() < 0.4 and Fault.DEADLINES in self._kinds
        return replace(request, remaining_ms=remaining_ms) if hurried else request


def _some(names: Iterable[str], rng: random.Random) -> list[str]:
    return [name for name in names if rng.random() < 0.3]


def _text(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(32, 126) for _ in range(count))
