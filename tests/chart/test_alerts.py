"""The alerts: promtool finds nothing wrong, each fires when it shall and not before, and each has its chapter."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import ROOT, Values, of_kind, template, tool

from tandem.runtime.metrics_table import METRICS, PREFIX

HERE = 'tandem_cluster="c"'
BY_NAME = {metric.name: metric for metric in METRICS}
ON: Values = {"cluster": "c", "monitoring": {"rules": {"enabled": True}}}
REQUIRED = {
    *("TandemRingStalled", "TandemDivergence", "TandemStrandedKv", "TandemEdgeBreakerOpen", "TandemNoPair"),
    *("TandemRegistryStale", "TandemGoodputDrop"),
}


def groups(values: Values | None = None) -> list[dict[str, Any]]:
    [rule] = of_kind(template(ON | (values or {})), "PrometheusRule")
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


def rules() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in groups() for rule in group["rules"]}


def promtool(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([tool("promtool"), *words], cwd=folder, capture_output=True, text=True, timeout=60)


def written(folder: Path, values: Values | None = None) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": groups(values)}))
    return path


COLOCATED: Values = {"colocated": {"groups": 1}}
ALONE: Values = {"prefill": {"groups": 0}, "decode": {"groups": 0}, "colocated": {"groups": 1}}


@pytest.mark.parametrize("values", [{}, COLOCATED, ALONE], ids=["pair", "both", "colocated"])
def test_promtool_finds_nothing_wrong(tmp_path, values):
    done = promtool(tmp_path, "check", "rules", "--lint-fatal", str(written(tmp_path, values)))
    assert done.returncode == 0, done.stderr


def test_what_must_be_told_is_told_and_has_a_chapter():
    told = rules()
    assert told.keys() >= REQUIRED
    headings = re.findall(r"^#+ (Tandem\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(told)
    for name, rule in told.items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_metric_of_an_alert_is_served_with_those_labels():
    for rule in rules().values():
        for name, inside in re.findall(r"(tandem_\w+)\{([^}]*)\}", rule["expr"]):
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            metric = BY_NAME.get(name.removeprefix(PREFIX)) or BY_NAME[base.removeprefix(PREFIX)]
            labels = {label.name: label for label in metric.labels}
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', inside):
                if label not in ("tandem_cluster", "le"):
                    assert label in labels, f"{name} has no {label}"
                    values = labels[label].values
                    assert not values or any(re.fullmatch(value, each) for each in values), f"{name} {label}={value}"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    inside = ",".join([HERE, *(f'{label}="{value}"' for label, value in labels.items())])
    return {"series": f"tandem_{name}{{{inside}}}", "values": values}


RANK = {"role": "prefill", "group": "p0", "rank": "1"}
UP = [series("registry_up", "1x100")]
USABLE = [
    series("worker_state", "1x100", role="prefill", group="p0", state="usable"),
    series("worker_state", "1x100", role="decode", group="d0", state="usable"),
]
FAST = [
    series("time_to_first_token_seconds_bucket", "0+100x100", le="2.5"),
    series("time_to_first_token_seconds_count", "0+100x100"),
]
SLOW = [
    series("time_to_first_token_seconds_bucket", "0+80x100", le="2.5"),
    series("time_to_first_token_seconds_count", "0+100x100"),
]
SHED = [
    *FAST,
    series("http_requests_total", "0+50x100", code="503"),
    series("http_requests_total", "0+900x100", code="200"),
]
QUIET = [
    series("time_to_first_token_seconds_bucket", "0+1x100", le="2.5"),
    series("time_to_first_token_seconds_count", "0+3x100"),
]
GOOD = [*UP, *USABLE, *FAST]
"""Nothing is amiss: every minute a sample."""

CASES: dict[str, tuple[list[dict[str, str]], str, set[str]]] = {
    "nothing is amiss": (GOOD, "30m", set()),
    "a ring stalled and formed again": (
        [*GOOD, series("epoch_fences_total", "0x9 1x90", cause="stalled", **RANK)],
        "12m",
        {"TandemRingStalled"},
    ),
    "it is long over": ([*GOOD, series("epoch_fences_total", "0x9 1x90", cause="stalled", **RANK)], "40m", set()),
    "another end of an epoch": ([*GOOD, series("epoch_fences_total", "0x9 1x90", cause="left", **RANK)], "12m", set()),
    "a ring stands still": (
        [*GOOD, series("ring_lag_ticks", "2x100", **RANK), series("tick_total", "7x100", **RANK)],
        "12m",
        {"TandemRingStalled"},
    ),
    "an idle ring": (
        [*GOOD, series("ring_lag_ticks", "0x100", **RANK), series("tick_total", "7x100", **RANK)],
        "12m",
        set(),
    ),
    "a divergence": ([*GOOD, series("divergence_total", "0x9 1x90", **RANK)], "12m", {"TandemDivergence"}),
    "held pages": ([*GOOD, series("kv_oldest_hold_seconds", "0+60x100", **RANK)], "5m", {"TandemStrandedKv"}),
    "pages held for a moment": ([*GOOD, series("kv_oldest_hold_seconds", "12x100", **RANK)], "30m", set()),
    "an open breaker": ([*GOOD, series("breaker_state", "2x100", edge="p0->d0")], "5m", {"TandemEdgeBreakerOpen"}),
    "a breaker on trial": ([*GOOD, series("breaker_state", "1x100", edge="p0->d0")], "5m", set()),
    "no decode group": ([*UP, USABLE[0], *FAST], "5m", {"TandemNoPair"}),
    "decode is lost": (
        [*UP, USABLE[0], series("worker_state", "0x100", role="decode", group="d0", state="usable"), *FAST],
        "5m",
        {"TandemNoPair"},
    ),
    "one of two decode groups is lost": (
        [*GOOD, series("worker_state", "0x100", role="decode", group="d1", state="usable")],
        "15m",
        {"TandemGroupNotUsable"},
    ),
    "no router": ([], "5m", {"TandemNoRouter"}),
    "a stale registry": ([*GOOD, series("registry_stale_seconds", "0+30x100")], "5m", {"TandemRegistryStale"}),
    "slow first tokens": ([*UP, *USABLE, *SLOW], "15m", {"TandemGoodputDrop"}),
    "refused requests": ([*UP, *USABLE, *SHED], "15m", {"TandemGoodputDrop"}),
    "hardly a request": ([*UP, *USABLE, *QUIET], "15m", set()),
    "damaged KV": ([*GOOD, series("kv_checksum_mismatch_total", "0x9 1x90", **RANK)], "12m", {"TandemKvChecksum"}),
    "TCP instead of RDMA": (
        [*GOOD, series("kv_transport_info", "1x100", kind="mooncake-tcp", degraded="true", **RANK)],
        "10m",
        {"TandemTransportDegraded"},
    ),
}


def test_each_alert_fires_when_it_shall_and_only_then(tmp_path):
    written(tmp_path)
    told = rules()
    tests = []
    for name, (given, at, firing) in CASES.items():
        quiet = [{"eval_time": at, "alertname": alert, "exp_alerts": []} for alert in told if alert not in firing]
        expect = [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) >= bool 1',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for alert in sorted(firing)
        ]
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": given,
                "alert_rule_test": quiet,
                "promql_expr_test": expect,
            }
        )
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    done = promtool(tmp_path, "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {alert for _, _, firing in CASES.values() for alert in firing} == told.keys(), "each is seen to fire"


def test_an_alert_that_should_not_fire_would_be_found(tmp_path):
    """promtool itself is not taken on trust."""
    written(tmp_path)
    wrong = {
        "interval": "1m",
        "input_series": [],
        "alert_rule_test": [{"eval_time": "5m", "alertname": "TandemNoRouter", "exp_alerts": []}],
    }
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [wrong]}))
    assert promtool(tmp_path, "test", "rules", str(path)).returncode == 1


def test_a_cluster_of_colocated_groups_needs_no_pair(tmp_path):
    written(tmp_path, ALONE)
    one = series("worker_state", "1x100", role="colocated", group="c0", state="usable")
    lost = series("worker_state", "0x100", role="colocated", group="c0", state="usable")
    expression = 'count(ALERTS{alertname="TandemNoPair",alertstate="firing"})'
    tests = [
        {
            "interval": "1m",
            "input_series": [*UP, one],
            "promql_expr_test": [{"expr": expression, "eval_time": "5m", "exp_samples": []}],
        },
        {
            "interval": "1m",
            "input_series": [*UP, lost],
            "promql_expr_test": [
                {"expr": expression, "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 1}]}
            ],
        },
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}))
    done = promtool(tmp_path, "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
