"""Grafana's dashboards: their files are what the code says, and they ask for what processes serve."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart import of_kind, template

from k8s.dashboards import DASHBOARDS, FOLDER, text
from tandem.runtime.metrics_table import METRICS, PREFIX

BY_SERIES = {
    f"{metric.full_name}{suffix}": metric
    for metric in METRICS
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}
BY_MONITORS = {"tandem_cluster", "pod", "le"}
"""Labels that Prometheus adds, or its histograms."""


def panels() -> list[dict[str, Any]]:
    return [
        panel
        for path in sorted(FOLDER.glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        if panel["type"] != "row"
    ]


def queries() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.uid)
def test_the_files_are_what_the_code_says(dashboard):
    assert (FOLDER / f"{dashboard.uid}.json").read_text() == text(dashboard), "run `python -m k8s.dashboards`"


def test_there_are_no_others():
    assert {path.stem for path in FOLDER.iterdir()} == {dashboard.uid for dashboard in DASHBOARDS}


def test_every_query_asks_for_metrics_and_labels_that_are_served():
    for query in queries():
        names = re.findall(r"tandem_\w+(?=\{)", query)
        assert names, query
        assert set(names) == set(re.findall(rf"\b{PREFIX}(?!cluster)\w+", query)), "each is asked of one cluster"
        labels = {label.name for name in names for label in BY_SERIES[name].labels} | BY_MONITORS
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            assert set(re.split(r",\s*", grouped)) <= labels, query
        assert set(re.findall(r"(\w+)=~?\"", query)) <= labels, query


def test_every_metric_is_on_a_dashboard():
    shown = {BY_SERIES[name].name for query in queries() for name in re.findall(r"tandem_\w+(?=\{)", query)}
    assert shown == {metric.name for metric in METRICS}


def test_every_panel_has_a_title_of_its_own_and_a_place():
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for path in FOLDER.glob("*.json"):
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            x, y, w, h = (panel["gridPos"][key] for key in "xywh")
            cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
            assert not cells & taken, panel["title"]
            assert x + w <= 24
            taken |= cells


def test_the_release_has_them_as_grafanas_sidecar_finds_them():
    maps = of_kind(template({"monitoring": {"dashboards": {"enabled": True, "labels": {"find": "me"}}}}), "ConfigMap")
    found = {name: json.loads(content) for each in maps for name, content in each["data"].items()}
    assert found == {path.name: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    assert all(each["metadata"]["labels"]["find"] == "me" for each in maps)
    assert yaml.safe_dump(found)
