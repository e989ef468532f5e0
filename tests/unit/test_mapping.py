"""Which layers go where, for any partitions, and what counts as landed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.coverage import Coverage
from kvtransfer.mapping import overlap, owners
from kvtransfer.peers import Peers
from tandem.core.config import Group, RoleName
from tandem.core.events import PeerLost, PeerOpened
from tandem.core.ids import LayerId, RankId
from tandem.core.messages import Hello, Region


def hello(group: Group, rank: int) -> Hello:
    first, last = group.layers(RankId(rank))
    return Hello(group.name, RankId(rank), group.size, 1, "print", "sim", "", Region(0, first, last, 8, 64))


@st.composite
def partitions(draw: st.DrawFn, layers: int) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
    edges = [0, *sorted(cuts), layers]
    return tuple(high - low for low, high in pairwise(edges))


Partition = tuple[int, ...]
PAIRS = st.integers(1, 12).flatmap(lambda layers: st.tuples(partitions(layers), partitions(layers)))


@given(PAIRS)
def test_every_layer_of_every_stage_has_the_one_owner_that_holds_it(pair: tuple[Partition, Partition]):
    prefill, decode = Group(RoleName.PREFILL, "p0", pair[0]), Group(RoleName.DECODE, "d0", pair[1])
    peers = {RankId(rank): hello(decode, rank) for rank in reversed(range(decode.size))}
    sent = {}
    for rank in range(prefill.size):
        found = owners(*prefill.layers(RankId(rank)), peers)
        assert found is not None
        assert list(found.values()) == [owner for layer, owner in found.items() if holds(decode, owner, layer)]
        sent.update(found)
    assert sorted(sent) == list(range(sum(pair[0])))


def holds(group: Group, rank: RankId, layer: LayerId) -> bool:
    first, last = group.layers(rank)
    return first <= layer < last


@given(PAIRS, st.data())
def test_while_an_owner_is_missing_there_is_no_route(pair: tuple[Partition, Partition], data: st.DataObject):
    prefill, decode = Group(RoleName.PREFILL, "p0", pair[0]), Group(RoleName.DECODE, "d0", pair[1])
    mine = RankId(data.draw(st.integers(0, prefill.size - 1)))
    missing = RankId(data.draw(st.integers(0, decode.size - 1)))
    peers = {RankId(rank): hello(decode, rank) for rank in range(decode.size) if rank != missing}
    needed = overlap(*prefill.layers(mine), hello(decode, missing).region)
    assert (owners(*prefill.layers(mine), peers) is None) == (needed[0] < needed[1])


@pytest.mark.parametrize(
    ("mine", "theirs", "shared"),
    [((0, 4), (0, 4), (0, 4)), ((0, 4), (2, 8), (2, 4)), ((2, 4), (0, 8), (2, 4)), ((0, 2), (2, 4), (2, 2))],
)
def test_the_overlap_is_a_range_that_may_be_empty(mine, theirs, shared):
    assert overlap(*mine, Region(0, *theirs, 8, 64)) == shared


def test_a_route_opens_with_the_last_peer_and_closes_with_the_first_loss():
    decode = Group(RoleName.DECODE, "d0", (2, 2))
    peers = Peers()
    assert peers.route("d0", 0, 4) is None
    peers.on_event(PeerOpened(hello(decode, 1)))
    assert peers.route("d0", 0, 4) is None
    assert peers.route("d0", 2, 4) == {2: 1, 3: 1}
    peers.on_event(PeerOpened(hello(decode, 0)))
    assert peers.route("d0", 1, 3) == {1: 0, 2: 1}
    assert peers.route("d1", 0, 4) is None
    peers.on_event(PeerLost("d0", RankId(0)))
    peers.on_event(PeerLost("d0", RankId(0)))
    peers.on_event(PeerLost("d9", RankId(0)))
    assert peers.route("d0", 0, 4) is None


def test_an_address_is_one_block_per_layer_and_page():
    region = Region(1000, LayerId(2), LayerId(4), 8, 64)
    addresses = [region.address(layer, page) for layer in (2, 3) for page in range(8)]
    assert addresses == [1000 + 64 * index for index in range(16)]


RANGES = st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 20))


@given(st.integers(1, 20), st.integers(0, 19), st.lists(RANGES, max_size=30))
def test_coverage_is_complete_exactly_when_every_token_of_every_layer_is_here(tokens: int, start: int, ranges):
    coverage = Coverage(LayerId(0), LayerId(4), tokens, min(start, tokens - 1))
    missing = {(layer, token) for layer in range(4) for token in range(min(start, tokens - 1), tokens)}
    for layer, one, other in ranges:
        first, last = min(one, other), max(one, other)
        coverage.add(LayerId(layer), first, last)
        missing -= {(layer, token) for token in range(first, last)}
        assert coverage.complete == (not missing)


def test_a_commit_that_comes_twice_does_not_stand_in_for_another():
    coverage = Coverage(LayerId(0), LayerId(2), 4)
    for _ in range(2):
        coverage.add(LayerId(0), 0, 4)
    assert not coverage.complete
    coverage.add(LayerId(1), 2, 4)
    coverage.add(LayerId(1), 0, 1)
    assert not coverage.complete
    coverage.add(LayerId(1), 1, 2)
    assert coverage.complete


def test_tokens_past_the_end_neither_undo_nor_double_what_has_landed():
    coverage = Coverage(LayerId(0), LayerId(2), 4)
    for first, last in ((0, 4), (8, 9), (4, 8)):
        coverage.add(LayerId(0), first, last)
        assert not coverage.complete
    coverage.add(LayerId(1), 0, 4)
    assert coverage.complete


def test_a_layer_that_is_not_ours_is_refused():
    with pytest.raises(KeyError):
        Coverage(LayerId(0), LayerId(2), 4).add(LayerId(2), 0, 4)
