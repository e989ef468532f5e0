"""From figures to Prometheus's text: zeros where there is nothing yet, buckets that add up, nothing but the table."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem.core.figures import Figures, Histogram
from tandem.runtime.exposition import Exposition
from tandem.runtime.metrics_table import Label, Metric

KIND = Label("kind", ("a", "b"))
EDGE = Label("edge", bound="few")
RANK = Label("rank", bound="its own")
TABLE = (
    Metric("seen_total", "counter", "Seen.", ("x",), (RANK, KIND)),
    Metric("sent_total", "counter", "Sent.", ("x",), (RANK, EDGE)),
    Metric("full", "gauge", "Full.", ("x",), (RANK,)),
    Metric("wait_seconds", "histogram", "Wait.", ("x",), (RANK,), (0.1, 1.0)),
)


@pytest.fixture
def figures() -> Figures:
    return Figures({"wait_seconds": (0.1, 1.0)})


def told(figures: Figures, *gauges: tuple[str, tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Samples by name and label values."""
    text = Exposition(TABLE, figures, ("7",)).render(gauges).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(sample.labels["rank"] == "7" for sample in samples)
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "rank")): sample.value
        for sample in samples
    }


def test_values_that_are_known_before_begin_at_zero(figures: Figures):
    samples = told(figures)
    assert samples["tandem_seen_total", "a"] == samples["tandem_seen_total", "b"] == 0
    assert samples["tandem_wait_seconds_count",] == 0
    assert not [name for name, *_ in samples if name in ("tandem_sent_total", "tandem_full")]


def test_what_happens_is_counted_by_its_labels(figures: Figures):
    figures.count("seen_total", "b")
    figures.add("seen_total", 2, "b")
    figures.count("sent_total", "p0->d0")
    samples = told(figures, ("full", (), 3))
    assert (samples["tandem_seen_total", "b"], samples["tandem_seen_total", "a"]) == (3, 0)
    assert samples["tandem_sent_total", "p0->d0"] == 1
    assert samples["tandem_full",] == 3


def test_buckets_hold_all_up_to_their_bound(figures: Figures):
    for value in (0.05, 0.1, 0.5, 7.0, -1.0):
        figures.observe("wait_seconds", value)
    samples = told(figures)
    counts = [samples["tandem_wait_seconds_bucket", bound] for bound in ("0.1", "1.0", "+Inf")]
    assert counts == [3, 4, 5]
    assert samples["tandem_wait_seconds_count",] == 5
    assert samples["tandem_wait_seconds_sum",] == pytest.approx(7.65)


def test_several_at_once_count_as_so_many():
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 4)
    assert (histogram.count, histogram.sum) == (4, 2.0)


def test_nothing_that_is_not_in_the_table_can_be_told(figures: Figures):
    with pytest.raises(KeyError, match="unheard_of"):
        told(figures, ("unheard_of", (), 1))
    with pytest.raises(KeyError, match="unheard_of"):
        figures.observe("unheard_of", 1)
