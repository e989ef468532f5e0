"""What a rank has before it knows anybody: by its role, and by what it was told."""

import msgspec
import pytest

from tandem.core.config import Group, Limits, RankOptions, RoleName
from tandem.core.errors import ConfigError
from tandem.core.ids import LEADER, PageId
from tandem.runtime.resources import load_resources

PAGE = (PageId(0),)


def options(role: RoleName, host_pages: int) -> RankOptions:
    limits = Limits(num_pages=4, host_pages=host_pages)
    return RankOptions(
        cluster="c",
        group=Group(role, "g0", (2,)),
        rank=LEADER,
        model="fake:2",
        served_model_name="m",
        limits=limits,
        registry_url="",
        run_dir="",
    )


def test_a_decode_rank_has_the_host_pages_it_was_told():
    made = load_resources(options(RoleName.DECODE, 1))
    made.engine.memory.block(0, 0)[:5] = b"hello"
    made.host.save(PAGE, PAGE)
    made.host.load(PAGE, (PageId(1),))
    assert bytes(made.engine.memory.block(0, 1)[:5]) == b"hello"


@pytest.mark.parametrize("role", [RoleName.PREFILL, RoleName.COLOCATED])
def test_who_never_copies_pages_maps_no_host_memory(role: RoleName):
    made = load_resources(options(role, 2**62))
    with pytest.raises(IndexError, match="no host page"):
        made.host.save(PAGE, PAGE)


def test_hidden_states_stay_on_a_gpu_only_where_the_engine_is_on_one():
    with pytest.raises(ConfigError, match="--hidden-link is nccl, but --engine is auto: give it only with flashinfer"):
        load_resources(msgspec.structs.replace(options(RoleName.DECODE, 0), hidden_link="nccl"))


def test_host_memory_that_is_not_there_is_told_by_its_flag():
    with pytest.raises(ConfigError, match=r"host-pages is .*: no room for its .* bytes, .*; give less"):
        load_resources(options(RoleName.DECODE, 2**62))
