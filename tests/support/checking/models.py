"""The models: small groups with two requests and hardly any pages, each with something that goes wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from checking.decode_stand_in import PAGE_SIZE, DecodeStandIn
from checking.environment import FAR_MS, Where, hello, works
from checking.pair import Router
from checking.prefill_stand_in import PrefillStandIn, Transfer
from checking.search import Explored, explore
from checking.setting import Setting

from tandem.core.config import Group, Limits, RoleName
from tandem.core.events import Event, PeerOpened
from tandem.core.plan import Question

SMALL = {
    "page_size": PAGE_SIZE,
    "context": 16,
    "chunked_prefill_size": 2,
    "max_prefill_tokens": 2,
    "prefix_cache": False,
    "slot_rows": 1,
}


def decode(
    ranks: int,
    tokens: tuple[int, ...] = (2, 2),
    pages: int = 2,
    ring: bool = False,
    grammar: str = "",
    **around: Any,
) -> Setting:
    """A decode group with a layer per rank. Each request needs a page for its prompt, and a second one to go on."""
    limits = Limits(num_pages=pages, transfer_consensus="ring" if ring else "store", **SMALL)
    stand_in = PrefillStandIn(works("p0", (2, 2), tokens, grammar), size=ranks, **around)
    return Setting((_group(RoleName.DECODE, "d0", ranks),), limits, stand_in, tuple(_met("d0", "p0", ranks, around)))


def room(
    ranks: int,
    tokens: tuple[int, ...] = (3, 3),
    pages: int = 4,
    host_pages: int = 4,
    async_depth: int = 0,
    slot_rows: int = 1,
    refuses: Question | None = None,
    **around: Any,
) -> Setting:
    """A decode group whose requests are running, and will soon need more pages than there are: the latest makes room.

    A page is a token. Each request has one at first, and needs as many as it generates.
    """
    slots = {"async_depth": async_depth, "slot_rows": slot_rows, "page_size": 1}
    limits = Limits(num_pages=pages, host_pages=host_pages, **(SMALL | slots))
    transfers = (Transfer(),) * len(tokens)
    stand_in = PrefillStandIn(
        works("p0", (1,) * len(tokens), tokens), size=ranks, transfers=transfers, **({"struck": 1} | around)
    )
    groups, before = (_group(RoleName.DECODE, "d0", ranks),), tuple(_met("d0", "p0", ranks, around))
    return Setting(groups, limits, stand_in, before, warm=True, refuses=refuses)


def prefill(
    ranks: int,
    prompts: tuple[int, ...] = (2, 2),
    pages: int = 1,
    requests: int = 2,
    ring: bool = False,
    ready: bool = False,
    coarse: bool = False,
    grammar: str = "",
    **around: Any,
) -> Setting:
    """A prefill group with a layer per rank. A page is a chunk. `ready`: the second room is granted from the start."""
    limits = Limits(num_pages=pages, transfer_consensus="ring" if ring else "store", **SMALL)
    stand_in = DecodeStandIn(works("d0", prompts[:requests], (2, 2), grammar), size=ranks, **around)
    before = list(_met("p0", "d0", ranks, around))
    if ready:
        before += [(("p0", rank), stand_in.grant(1)) for rank in range(ranks)]
        stand_in = stand_in.all_granted(1)
    return Setting((_group(RoleName.PREFILL, "p0", ranks),), limits, stand_in, tuple(before), coarse=coarse)


def pair(
    decodes: int, requests: int = 2, pages: int = 2, ring: bool = False, grammar: str = "", **around: Any
) -> Setting:
    """One prefill rank and one or more decode ranks, a layer each."""
    limits = Limits(num_pages=pages, transfer_consensus="ring" if ring else "store", **SMALL)
    groups = Group(RoleName.PREFILL, "p0", (decodes,)), _group(RoleName.DECODE, "d0", decodes)
    router = Router(works("", (2, 2)[:requests], (2, 2)[:requests], grammar), sizes=(1, decodes), **around)
    before: list[tuple[Where, Event]] = []
    for rank in range(decodes):
        before.append((("p0", 0), PeerOpened(hello("d0", rank, (rank, rank + 1), decodes))))
        before.append((("d0", rank), PeerOpened(hello("p0", 0, (0, decodes)))))
    return Setting(groups, limits, router, tuple(before))


def _group(role: RoleName, name: str, ranks: int) -> Group:
    return Group(role, name, (1,) * ranks)


def _met(name: str, peer: str, ranks: int, around: dict[str, Any]) -> Iterator[tuple[Where, Event]]:
    for rank in range(ranks):
        if rank not in around.get("closed", ()):
            yield (name, rank), PeerOpened(hello(peer, 0, (0, ranks)))


class Trivial(Exception):
    """There is less to see in a model than there was: it does not show any more what it was made for."""


@dataclass(frozen=True)
class Model:
    """A setting, and how much of it there is to see."""

    setting: Callable[[], Setting]
    states: int  # at least
    answers: int  # different ways in which routers have been answered, at least

    def explore(self, reduce: bool = True) -> Explored:
        """See `search.explore`. Raises Trivial too."""
        explored = explore(self.setting(), reduce)
        seen = explored.states, len(explored.answers)
        if seen[0] < self.states or seen[1] < self.answers:
            raise Trivial(f"(states, answers) are {seen}, they were {(self.states, self.answers)} at least")
        return explored


def refused(question: Question) -> dict[str, Any]:
    """The last rank says no once, so the latest request loses its pages."""
    return {"refuses": question, "evicts": True}


ALONE: dict[str, Any] = {"tokens": (4, 4), "pages": 5}
"""One slot: the first request is a token ahead of the second, which is to hold pages when they run out."""
TWICE: dict[str, Any] = {"tokens": (5, 5, 4), "pages": 7, "host_pages": 8, "struck": 2}
"""The third request makes room for both, comes back when the first has ended, and makes room for the second."""
THREE: dict[str, Any] = {"tokens": (4, 4, 4), "pages": 6, "host_pages": 8, "async_depth": 1, "struck": 2, "late": 1}
"""Two slots: the third request comes back while the second one's slot runs, so it can end before its own does."""
LATE: dict[str, Any] = {"remaining_ms": (5, FAR_MS), "hurries": 1}
"""The first request's deadline can pass at any moment."""


GRAMMARS: dict[str, Any] = {"grammar": "{}", "bad_grammars": 1, "spares": False}
"""Both requests have one; they are ready in any order, or one is not to be compiled."""


MODELS: dict[str, Model] = {
    # decode: pages for one, so the second request waits for the first
    "decode, aborted or late": Model(partial(decode, 1, aborts=1, failures=1, **LATE), 2_000, 8),
    "decode, pages for both": Model(partial(decode, 1, pages=4, aborts=1), 3_000, 3),
    "decode 2, not met yet": Model(partial(decode, 2, aborts=1, closed=frozenset({1})), 6_500, 3),
    "decode 2, a lost peer": Model(partial(decode, 2, losses=1, losing=frozenset({1}), spares=False), 6_000, 3),
    "decode 2, a lossy store": Model(partial(decode, 2, store_faults=1), 6_000, 1),
    "decode 3, aborted": Model(partial(decode, 3, aborts=1), 13_000, 3),
    "decode by ring": Model(partial(decode, 1, ring=True, aborts=1, failures=1, hurries=1), 2_700, 6),
    "decode 2 by ring, a lost peer": Model(
        partial(decode, 2, ring=True, losses=1, losing=frozenset({0}), spares=False), 3_600, 3
    ),
    "decode 2 by ring, aborted": Model(partial(decode, 2, ring=True, aborts=1), 4_300, 3),
    "decode 3 by ring": Model(partial(decode, 3, ring=True), 3_000, 1),
    "decode, grammars": Model(partial(decode, 1, **GRAMMARS, aborts=1), 1_400, 7),
    "decode 2, grammars": Model(partial(decode, 2, **GRAMMARS), 3_000, 3),
    # decode: all need more pages than there are, so the latest makes room
    "room, aborted": Model(partial(room, 1, **ALONE, aborts=1), 500, 5),
    "room, the older one aborted": Model(partial(room, 1, **ALONE, aborts=1, struck=0), 600, 5),
    "room, two forwards at once": Model(partial(room, 1, async_depth=1, aborts=1), 400, 4),
    "room, aborted or evicted": Model(partial(room, 1, **ALONE, host_pages=0, evicts=True, aborts=1), 400, 6),
    "room, a refused retraction": Model(partial(room, 1, **ALONE, **refused(Question.RETRACT), aborts=1), 400, 6),
    "room, a refused return": Model(partial(room, 1, **ALONE, **refused(Question.RESUME), aborts=1), 450, 6),
    "room, made twice by one": Model(partial(room, 1, **TWICE), 1_000, 1),
    "room, three in two slots": Model(partial(room, 1, **THREE, aborts=1), 1_000, 5),
    "room, slots of two that are joined": Model(partial(room, 1, **THREE, slot_rows=2, aborts=1), 1_000, 5),
    "room 2, aborted": Model(partial(room, 2, aborts=1), 2_300, 4),
    "room 2, aborted or evicted": Model(partial(room, 2, host_pages=0, evicts=True, aborts=1), 1_500, 5),
    "room 2, a refused retraction": Model(partial(room, 2, **refused(Question.RETRACT), aborts=1), 1_700, 5),
    "room 2, a refused return": Model(partial(room, 2, **refused(Question.RESUME), aborts=1), 2_000, 5),
    "room 3": Model(partial(room, 3), 1_900, 1),
    # prefill: a page is a chunk
    "prefill, a bad write": Model(
        partial(prefill, 1, prompts=(4, 2), pages=2, aborts=1, bad_writes=1, spares=False), 2_300, 8
    ),
    "prefill, ended by its peer or late": Model(partial(prefill, 1, failures=1, aborts=1, **LATE), 1_800, 8),
    "prefill 2, aborted": Model(partial(prefill, 2, ready=True, aborts=1), 12_000, 3),
    "prefill 2, a bad write": Model(partial(prefill, 2, ready=True, coarse=True, bad_writes=1, spares=False), 6_500, 5),
    "prefill 3, aborted": Model(partial(prefill, 3, requests=1, aborts=1), 2_700, 3),
    "prefill by ring, a bad write": Model(
        partial(prefill, 1, ring=True, prompts=(4, 2), pages=2, aborts=1, bad_writes=1, spares=False), 1_100, 6
    ),
    "prefill 2 by ring, aborted": Model(partial(prefill, 2, ring=True, requests=1, aborts=1), 1_100, 3),
    "prefill, grammars": Model(partial(prefill, 1, **GRAMMARS, aborts=1), 3_300, 7),
    "prefill 2, grammars": Model(partial(prefill, 2, **GRAMMARS, ready=True, coarse=True), 30_000, 3),
    # both groups
    "a pair, aborted at both": Model(partial(pair, 1, aborts=(1, 1)), 7_500, 11),
    "a pair by ring, aborted at both": Model(partial(pair, 1, ring=True, aborts=(1, 1)), 2_900, 11),
    "a pair by ring, whatever happens to one": Model(
        partial(pair, 1, requests=1, ring=True, aborts=(1, 1), bad_writes=1, hurries=1), 5_200, 12
    ),
    "a pair, a bad write": Model(partial(pair, 1, bad_writes=1, spares=False), 700, 4),
    "a pair 1 x 2, aborted at decode": Model(partial(pair, 2, aborts=(0, 1)), 18_000, 5),
    "a pair 1 x 2, whatever happens to one": Model(
        partial(pair, 2, requests=1, aborts=(1, 1), bad_writes=1), 16_000, 8
    ),
    "a pair, grammars": Model(partial(pair, 1, requests=1, **GRAMMARS, aborts=(1, 0)), 590, 11),
}
"""All that `make test` explores, by what happens and the number of ranks if there are several."""


def large(ranks: int) -> dict[str, Model]:
    """Models to be explored on demand: minutes and gigabytes."""
    return {
        f"decode {ranks}, aborted": Model(partial(decode, ranks, aborts=1), 13_000, 3),
        f"decode {ranks} by ring": Model(partial(decode, ranks, ring=True), 3_000, 1),
        f"room {ranks}, aborted": Model(partial(room, ranks, aborts=1), 2_300, 4),
        f"room {ranks}, a lossy store": Model(partial(room, ranks, store_faults=1), 7_500, 1),
        f"room {ranks}, made twice by one": Model(partial(room, ranks, **TWICE), 1_000, 1),
        f"decode {ranks}, a lossy store": Model(partial(decode, ranks, store_faults=1), 6_000, 1),
        f"prefill {ranks}": Model(partial(prefill, ranks, ready=True, coarse=True), 10_000, 1),
        f"prefill {ranks} by ring": Model(partial(prefill, ranks, ring=True, ready=True, coarse=True), 7_500, 1),
        f"a pair 1 x {ranks}": Model(partial(pair, ranks), 3_000, 1),
    }
