"""Layers are cut so that the slowest stage is as fast as can be, whatever the first and the last one have besides."""

from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.core.config import RoleName, split_layers
from tandem.core.errors import ConfigError
from tandem.core.splitting import Costs, Weights, costs_of, split
from tandem.engine.model import bundled_model_path, partition_of, read_shape, weights_of
from tandem.engine.shape import ModelShape

ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROLES = st.sampled_from(RoleName)
MODELS = st.builds(Weights, st.integers(1, 60), st.integers(1, 10**9), st.integers(0, 10**10), st.integers(0, 20_000))


@pytest.fixture(scope="module")
def small() -> ModelShape:
    return read_shape(str(bundled_model_path()))


@ANY_MACHINE
@given(MODELS, ROLES, st.integers(1, 70))
def test_every_stage_has_a_layer_and_every_layer_a_stage(weights: Weights, role: RoleName, parts: int):
    if parts > weights.layers:
        with pytest.raises(ConfigError, match=f"pp-size is {parts}"):
            split(weights, role, parts)
        return
    partition = split(weights, role, parts)
    assert sum(partition) == weights.layers
    assert len(partition) == parts
    assert min(partition) >= 1
    assert split(weights, role, parts) == partition


def all_partitions(layers: int, parts: int) -> list[tuple[int, ...]]:
    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), parts - 1)]
    return [tuple(after - before for before, after in pairwise(cut)) for cut in cuts]


@ANY_MACHINE
@given(
    st.builds(Weights, st.integers(1, 9), st.integers(1, 50), st.integers(0, 400), st.integers(0, 40)),
    ROLES,
    st.integers(1, 9),
)
def test_no_other_way_to_cut_has_a_faster_slowest_stage(weights: Weights, role: RoleName, parts: int):
    parts = min(parts, weights.layers)
    costs = costs_of(weights, role)
    best = min(max(costs.stages(partition)) for partition in all_partitions(weights.layers, parts))
    assert max(costs.stages(split(weights, role, parts))) == best


@ANY_MACHINE
@given(st.integers(1, 60), st.integers(1, 60), ROLES)
def test_without_anything_besides_the_layers_they_are_split_evenly(layers: int, parts: int, role: RoleName):
    parts = min(parts, layers)
    assert split(Weights(layers, 7, 0, 0), role, parts) == split_layers(layers, parts)


def test_one_stage_bears_what_the_first_and_the_last_have():
    assert Costs(layer=10, first=1, last=5).stages((3,)) == [36]
    assert Costs(layer=10, first=1, last=5).stages((1, 2)) == [11, 25]


def test_a_large_vocabulary_shortens_decodes_last_stage_and_hardly_prefills(small: ModelShape):
    weights = weights_of(small)
    assert weights.layers * weights.layer + weights.head == 134_479_872, "all its matrices"
    assert split(weights, RoleName.DECODE, 2) == (19, 11)
    assert split(weights, RoleName.PREFILL, 2) == (15, 15)
    assert split(weights, RoleName.COLOCATED, 2) == (16, 14)
    assert split(weights, RoleName.DECODE, 3) == (12, 13, 5)
    assert split(weights, RoleName.DECODE, 4) == (9, 10, 10, 1)


def test_a_model_with_large_layers_is_split_nearly_evenly(small: ModelShape):
    large = msgspec.structs.replace(
        small, layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, vocab=128_256
    )
    assert split(weights_of(large), RoleName.DECODE, 4) == (8, 9, 9, 6)
    assert split(weights_of(large), RoleName.PREFILL, 4) == (8, 8, 8, 8)


def test_what_an_operator_gives_is_taken_and_auto_is_computed(small: ModelShape):
    assert partition_of(small, RoleName.DECODE, 2, "10,20", "--pp-partition") == (10, 20)
    assert partition_of(small, RoleName.DECODE, 2, "auto", "--pp-partition") == (19, 11)
    assert partition_of(read_shape("fake:8"), RoleName.DECODE, 2, "auto", "--pp-partition") == (4, 4)
    with pytest.raises(ConfigError, match=r"--pp-partition is 'automatic': .*, or auto"):
        partition_of(small, RoleName.DECODE, 2, "automatic", "--pp-partition")
