"""What an operator may choose, and how a wrong choice is named."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.config import BOUNDS, Group, Limits, RoleName, Topology, check_limits, parse_partition, split_layers
from tandem.core.errors import ConfigError
from tandem.core.ids import RankId
from tandem.core.requests import Reason, Sampling, Work, ending, pages_for, too_large


@given(st.integers(1, 100), st.integers(1, 100))
def test_layers_are_split_evenly_the_longer_stages_first(layers: int, parts: int):
    if parts > layers:
        with pytest.raises(ConfigError, match=f"pp-size is {parts}"):
            split_layers(layers, parts)
        return
    partition = split_layers(layers, parts)
    assert sum(partition) == layers
    assert len(partition) == parts
    assert list(partition) == sorted(partition, reverse=True)
    assert partition[0] - partition[-1] <= 1


def test_a_pp_size_below_one_is_refused():
    with pytest.raises(ConfigError, match="pp-size is 0"):
        split_layers(8, 0)


def test_a_partition_is_read_as_written():
    assert parse_partition("10,10,11,9", 40, 4, "--prefill-partition") == (10, 10, 11, 9)


@pytest.mark.parametrize("text", ["", "a,b", "10,30,", "20,10", "40", "41,-1", "40,0", "10,10,20"])
def test_a_partition_that_does_not_add_up_names_its_flag(text: str):
    with pytest.raises(ConfigError, match="--decode-partition is "):
        parse_partition(text, 40, 2, "--decode-partition")


def test_a_group_knows_the_layers_of_each_rank():
    group = Group(RoleName.PREFILL, "p0", (2, 1, 3))
    assert [group.layers(RankId(rank)) for rank in range(group.size)] == [(0, 2), (2, 3), (3, 6)]


def test_ranks_are_listed_group_by_group():
    groups = (Group(RoleName.PREFILL, "p0", (1, 1)), Group(RoleName.DECODE, "d0", (2,)))
    topology = Topology("lab", "fake:2", groups, Limits())
    assert [(group.name, rank) for group, rank in topology.ranks()] == [("p0", 0), ("p0", 1), ("d0", 0)]


@pytest.mark.parametrize("field", BOUNDS)
def test_a_limit_that_cannot_work_is_named(field: str):
    flag, least, most = BOUNDS[field]
    for works in (least, most):
        limits = msgspec.structs.replace(Limits(), **{field: works})
        assert check_limits(limits) == limits
    for fails in (least - 1, most + 1, 2**63, 10**100):
        with pytest.raises(ConfigError, match=f"--{flag} is {fails}: give {least} to {most}"):
            check_limits(msgspec.structs.replace(Limits(), **{field: fails}))


def test_every_number_that_an_operator_chooses_has_its_bounds():
    numbers = {field for field, value in msgspec.structs.asdict(Limits()).items() if type(value) is int}
    assert numbers == {*BOUNDS, "context"}, "the context is the model's"


def work(prompt: int = 3, max_tokens: int = 5, stop_ids: tuple[int, ...] = (0,)) -> Work:
    return Work(None, tuple(range(prompt)), max_tokens, stop_ids, Sampling(), None)


def test_the_last_generated_token_needs_no_kv():
    assert work(prompt=3, max_tokens=5).last_position == 7
    assert work(prompt=3, max_tokens=1).last_position == 3


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_are_rounded_up(tokens: int, pages: int):
    assert pages_for(tokens, 16) == pages


def test_a_stop_id_ends_a_request_before_its_length_does():
    assert ending(work(), 5, 0) is Reason.STOP
    assert ending(work(), 5, 9) is Reason.LENGTH
    assert ending(work(), 4, 9) is None


def test_what_can_never_run_is_too_large():
    limits = Limits(context=8, num_pages=1, page_size=4)
    assert not too_large(work(3, 5), limits, tokens_kept=3)
    assert too_large(work(3, 6), limits, tokens_kept=3)
    assert too_large(work(0, 5), limits, tokens_kept=0)
    assert too_large(work(3, 5), limits, tokens_kept=5)
