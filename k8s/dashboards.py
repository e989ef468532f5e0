"""`python -m k8s.dashboards` writes the chart's Grafana dashboards: one row, one panel, one query after another."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent / "chart" / "dashboards"
WIDTH, HEIGHT = 24, 8
HERE = 'tandem_cluster="$cluster"'
OF_GROUPS = f'{HERE},group=~"$group"'
EVERY = "$__rate_interval"

Look = Literal["timeseries", "stat"]


@dataclass(frozen=True)
class Panel:
    """`queries`: (legend, expression). `unit`: one of Grafana's."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    look: Look = "timeseries"
    width: int = 8
    help: str = ""


@dataclass(frozen=True)
class Dashboard:
    """What one file holds: (title of a row, its panels)."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def rate(metric: str, by: str, where: str = OF_GROUPS) -> str:
    """Per second, summed by some labels."""
    return f"sum by ({by}) (rate(tandem_{metric}{{{where}}}[{EVERY}]))"


def quantiles(metric: str, where: str = HERE, by: str = "") -> tuple[tuple[str, str], ...]:
    """Half of them, 95 and 99 of 100."""
    of = f"le, {by}" if by else "le"
    label = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (f"p{part}{label}", f"histogram_quantile(0.{part}, {rate(f'{metric}_bucket', of, where)})")
        for part in (50, 95, 99)
    )


def p95(metric: str, by: str) -> str:
    """Of a histogram of ranks."""
    return f"histogram_quantile(0.95, {rate(f'{metric}_bucket', f'le, {by}')})"


def now(metric: str, by: str, where: str = OF_GROUPS, how: str = "sum") -> str:
    """What it is at this moment."""
    return f"{how} by ({by}) (tandem_{metric}{{{where}}})"


RANK_0 = f'{OF_GROUPS},rank="0"'
WHO = "{{role}} {{group}}"
RANK = "{{role}} {{group}}.{{rank}}"

REQUESTS = Dashboard(
    "tandem-requests",
    "Tandem: requests",
    (
        (
            "What clients see",
            (
                Panel("Answers by status", "reqps", (("{{code}}", rate("http_requests_total", "code", HERE)),)),
                Panel("Time to first token", "s", quantiles("time_to_first_token_seconds")),
                Panel("Between tokens", "s", quantiles("inter_token_latency_seconds")),
                Panel("Whole requests", "s", quantiles("request_duration_seconds")),
                Panel(
                    "Tokens",
                    "short",
                    (
                        ("of prompts", f"sum(rate(tandem_prompt_tokens_total{{{HERE}}}[{EVERY}]))"),
                        ("of answers", f"sum(rate(tandem_generated_tokens_total{{{HERE}}}[{EVERY}]))"),
                    ),
                ),
                Panel("Refused", "reqps", (("{{reason}}", rate("shed_total", "reason", HERE)),)),
            ),
        ),
        (
            "Routers",
            (
                Panel("Waiting in the routers", "short", (("{{pod}}", now("router_queue_depth", "pod", HERE)),)),
                Panel(
                    "Computed anew",
                    "ops",
                    (
                        ("retries", f"sum(rate(tandem_retries_total{{{HERE}}}[{EVERY}]))"),
                        ("migrations", f"sum(rate(tandem_migrations_total{{{HERE}}}[{EVERY}]))"),
                        ("clients that left", f"sum(rate(tandem_disconnect_aborts_total{{{HERE}}}[{EVERY}]))"),
                    ),
                ),
                Panel(
                    "Groups by state",
                    "short",
                    (
                        (
                            "{{role}} {{state}}",
                            f"sum by (role, state) (max by (role, group, state) (tandem_worker_state{{{HERE}}}))",
                        ),
                    ),
                ),
                Panel(
                    "Breakers: 0 closed, 1 trial, 2 open",
                    "short",
                    (("{{edge}}", now("breaker_state", "edge", HERE, "max")),),
                ),
                Panel("Registry is read", "short", (("routers", f"min(tandem_registry_up{{{HERE}}})"),), "stat", 4),
                Panel(
                    "Registry was last read",
                    "s",
                    (("at worst", f"max(tandem_registry_stale_seconds{{{HERE}}})"),),
                    "stat",
                    4,
                ),
            ),
        ),
    ),
)
GROUPS = Dashboard(
    "tandem-groups",
    "Tandem: groups and rings",
    (
        (
            "Work",
            (
                Panel("Running requests", "short", ((WHO, now("running_requests", "role, group", RANK_0)),)),
                Panel(
                    "Waiting requests",
                    "short",
                    ((f"{WHO} {{{{queue}}}}", now("waiting_requests", "role, group, queue", RANK_0)),),
                ),
                Panel("Ticks", "ops", ((WHO, rate("tick_total", "role, group", RANK_0)),)),
                Panel(
                    "Prompt tokens found in caches",
                    "short",
                    ((WHO, rate("prefix_hit_tokens_total", "role, group", RANK_0)),),
                ),
                Panel("Gave their pages up", "ops", ((WHO, rate("retracted_total", "role, group", RANK_0)),)),
                Panel(
                    "Ended before their last token",
                    "ops",
                    ((f"{WHO} {{{{where}}}}", rate("aborts_total", "role, group, where", RANK_0)),),
                ),
            ),
        ),
        (
            "Rings",
            (
                Panel(
                    "Engine's time for a tick",
                    "s",
                    (
                        (
                            f"p95 {RANK}",
                            p95("tick_duration_seconds", "role, group, rank"),
                        ),
                    ),
                ),
                Panel(
                    "Waiting for the ring",
                    "s",
                    (
                        (
                            f"p95 {RANK}",
                            p95("ring_receive_wait_seconds", "role, group, rank"),
                        ),
                    ),
                ),
                Panel(
                    "Share of a second that the engine stood still",
                    "percentunit",
                    ((RANK, rate("pipeline_bubble_seconds_total", "role, group, rank")),),
                ),
                Panel("Ticks in flight", "short", ((RANK, now("ring_lag_ticks", "role, group, rank", how="max")),)),
                Panel(
                    "Votes",
                    "s",
                    (("p95 {{kind}}", p95("vote_wait_seconds", "kind")),),
                ),
                Panel(
                    "Oldest fact not acknowledged",
                    "s",
                    ((RANK, now("store_update_age_seconds", "role, group, rank", how="max")),),
                ),
            ),
        ),
        (
            "Pages and epochs",
            (
                Panel("Pages", "short", ((f"{WHO} {{{{state}}}}", now("pages", "role, group, state", RANK_0)),)),
                Panel("Epoch", "none", ((WHO, now("epoch", "role, group", how="max")),)),
                Panel(
                    "Epochs that ended, in the last hour",
                    "short",
                    (
                        (
                            f"{WHO} {{{{cause}}}}",
                            f"max by (role, group, cause) (increase(tandem_epoch_fences_total{{{OF_GROUPS}}}[1h]))",
                        ),
                    ),
                ),
                Panel(
                    "Divergences, in the last day",
                    "short",
                    (("all", f"sum(increase(tandem_divergence_total{{{OF_GROUPS}}}[1d]))"),),
                    "stat",
                    4,
                ),
            ),
        ),
    ),
)
KV = Dashboard(
    "tandem-kv",
    "Tandem: KV transfer",
    (
        (
            "Flow",
            (
                Panel("Bytes by edge", "Bps", (("{{edge}}", rate("kv_bytes_total", "edge")),)),
                Panel(
                    "Where the time goes (p95)",
                    "s",
                    (
                        (
                            "{{role}} {{phase}}",
                            p95("kv_transfer_duration_seconds", "role, phase"),
                        ),
                    ),
                ),
                Panel("Not hidden behind compute", "s", quantiles("kv_exposed_seconds", OF_GROUPS)),
                Panel(
                    "Hand-overs",
                    "short",
                    ((f"{WHO} {{{{state}}}}", now("kv_transfers", "role, group, state", RANK_0)),),
                ),
                Panel("Bytes that need not come", "Bps", ((WHO, rate("kv_saved_bytes_total", "role, group")),)),
                Panel(
                    "Transport",
                    "short",
                    (("{{kind}} degraded={{degraded}}", now("kv_transport_info", "kind, degraded", how="count")),),
                ),
            ),
        ),
        (
            "Trouble",
            (
                Panel(
                    "Failed hand-overs",
                    "ops",
                    ((f"{WHO} {{{{reason}}}}", rate("kv_transfer_failures_total", "role, group, reason")),),
                ),
                Panel("Held pages", "short", ((WHO, now("kv_held_pages", "role, group", RANK_0)),)),
                Panel("Longest hold", "s", ((WHO, now("kv_oldest_hold_seconds", "role, group", how="max")),)),
                Panel(
                    "Damaged blocks found",
                    "short",
                    ((WHO, f"sum by (role, group) (increase(tandem_kv_checksum_mismatch_total{{{OF_GROUPS}}}[1h]))"),),
                ),
            ),
        ),
    ),
)
DASHBOARDS = (REQUESTS, GROUPS, KV)


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in dashboard.rows:
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append(
            {"type": "row", "title": title, "id": len(panels) + 1, "collapsed": False, "gridPos": place, "panels": []}
        )
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > WIDTH:
                top, left = top + HEIGHT, 0
            panels.append(_panel(panel, len(panels) + 1, left, top))
            left += panel.width
        top += HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["tandem"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _variables() -> list[dict[str, Any]]:
    """What the reader chooses."""
    asked = {"type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1}
    cluster = "label_values(tandem_registry_up, tandem_cluster)"
    group = f"label_values(tandem_epoch{{{HERE}}}, group)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {"name": "cluster", "label": "Cluster", **asked, "query": cluster, "definition": cluster},
        {
            "name": "group",
            "label": "Group",
            **asked,
            "query": group,
            "definition": group,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panel(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    custom = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"} if panel.look == "timeseries" else {}
    return {
        "type": panel.look,
        "title": panel.title,
        "description": panel.help,
        "id": number,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.look == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "legendFormat": legend, "expr": query}
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def text(dashboard: Dashboard) -> str:
    """Of its file."""
    return json.dumps(grafana(dashboard), indent=1) + "\n"


def main() -> None:
    """Write the files."""
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.uid}.json").write_text(text(dashboard))


if __name__ == "__main__":
    main()
