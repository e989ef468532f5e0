"""The table of metrics: bounded labels, whose values are those that the code can give them."""

import re

import pytest

from colocated.request import State as ColocatedState
from decode.intake import State as DecodeState
from prefill.handoff import State as PrefillState
from router.breakers import BreakerState
from router.membership import State
from router.metrics import LEVELS
from tandem.core.config import RoleName
from tandem.core.pages import PagePool
from tandem.runtime import metrics_table as table
from tandem.runtime.gauges import MOVING, RUNNING, WAITING
from tandem.runtime.metrics_table import METRICS, OWN_LABELS, Metric
from tandem.runtime.tally import CHECKSUM, ELSEWHERE, PEER, PLACES, WRITES

STATES = {RoleName.PREFILL: PrefillState, RoleName.DECODE: DecodeState, RoleName.COLOCATED: ColocatedState}
UNITS = ("seconds", "bytes", "tokens", "ticks", "pages")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_and_bounded_as_prometheus_wants_it(metric: Metric):
    assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") is (metric.kind == "counter")
    assert bool(metric.buckets) is (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.kind != "histogram" or metric.name.endswith("_seconds"), "latencies are in seconds"
    assert (metric.help.endswith(".") and metric.help[0].isupper()) or metric.help[0].isdigit()
    for label in metric.labels:
        assert bool(label.values) is not bool(label.bound), f"{label.name}: its values, or what bounds them"
        assert len(set(label.values)) == len(label.values)
    assert metric.where == (table.ROUTER,) or metric.labels[: len(OWN_LABELS)] == OWN_LABELS


def test_no_name_is_taken_twice():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_label_values_are_those_of_the_code():
    assert tuple(state.name.lower() for state in State) == table.GROUP_STATES
    assert tuple(PagePool(1, 1).counts()) == table.PAGES
    assert LEVELS.keys() == set(BreakerState)
    assert set(PLACES.values()) == set(table.PLACES)
    assert {*WRITES.values(), PEER, CHECKSUM, ELSEWHERE} == set(table.FAILURES)


@pytest.mark.parametrize("role", RoleName)
def test_requests_are_counted_by_states_that_there_are(role: RoleName):
    names = {state.value for state in STATES[role]}
    assert {*WAITING[role], *RUNNING[role], *MOVING[role]} <= names
    assert set(WAITING[role].values()) <= set(table.QUEUES)
    assert set(MOVING[role].values()) <= set(table.TRANSFERS)
