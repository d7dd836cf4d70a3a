"""The dashboard for Grafana and the alert rules: their queries, and when the rules fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.metrics.definitions import OF_RUNS, OF_TABLES, PREFIX, Metric

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
PROMTOOL = shutil.which("promtool")
with_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on PATH: the Debian package prometheus has it"
)


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def series_of(metric: Metric, name: str) -> dict[str, tuple[str, ...]]:
    """The series of a metric in Prometheus, with their labels."""
    match metric.kind:
        case "counter":
            return {f"{name}_total": metric.labels}
        case "histogram":
            buckets = {f"{name}_bucket": ("le", *metric.labels)}
            return buckets | {f"{name}_{each}": metric.labels for each in ("sum", "count")}
    return {name: metric.labels}


def known() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for metric in (*OF_TABLES, *OF_RUNS):
        found |= series_of(metric, metric.in_prometheus)
    for metric in OF_RUNS:
        # OpenTelemetry of Airflow: with its prefix, and times in milliseconds.
        name = f"airflow_{metric.in_prometheus}"
        found |= series_of(metric, re.sub("_seconds$", "_milliseconds", name))
    return found


EVERY = [*queries(), *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("query", EVERY)
def test_every_query_uses_metrics_and_labels_that_exist(query: str) -> None:
    names, series = re.findall(rf"\b(?:airflow_)?{PREFIX}_\w+", query), known()
    assert names
    for name in names:
        assert name in series, f"there is no metric {name}"
    for labels in re.findall(r"\bby \(([^)]*)\)", query):
        for label in labels.split(", "):
            assert all(label in series[name] for name in names), f"there is no label {label}"


def test_the_dashboard_shows_every_metric() -> None:
    text = " ".join(queries())
    assert [m.name for m in (*OF_TABLES, *OF_RUNS) if m.in_prometheus not in text] == []


def test_labels_in_texts_exist() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"])
    for rule in RULES:
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert re.search(rf"by \([^)]*\b{label}\b", rule["expr"])


def test_the_panels_fit_on_the_dashboard() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def promtool(*words: str | Path) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
@with_promtool
def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ALERTS)
    recorded = [{"record": f"q{n}", "expr": query} for n, query in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in promtool("check", "rules", file)


STEADY = {
    "delta_maintenance_failing_tables": "0x6000",
    "delta_maintenance_tables_without_series": "0x6000",
    "delta_maintenance_unlisted_patterns": "0x6000",
    "delta_maintenance_waiting_plans": "0x6000",
    # Assessed at every minute.
    "delta_maintenance_oldest_assessment_timestamp_seconds": "0+60x6000",
    'delta_maintenance_table_failing{table="orders"}': "0x6000",
    'delta_maintenance_table_commits_since_checkpoint{table="orders"}': "90x6000",
    'delta_maintenance_table_unreported_commits{table="orders"}': "9x6000",
}


@pytest.mark.process
@with_promtool
@pytest.mark.parametrize(
    ("alert", "series", "before", "after"),
    [
        (
            "DeltaTableFailing",
            {'delta_maintenance_table_failing{table="orders"}': "1x6000"},
            59,
            61,
        ),
        (
            "DeltaTablesFailing",
            {
                "delta_maintenance_failing_tables": "7x6000",
                "delta_maintenance_tables_without_series": "2500x6000",
            },
            59,
            61,
        ),
        ("DeltaPatternUnlisted", {"delta_maintenance_unlisted_patterns": "1x6000"}, 59, 61),
        (
            "DeltaAssessmentsOld",
            {"delta_maintenance_oldest_assessment_timestamp_seconds": "0x6000"},
            194,
            197,
        ),
        ("DeltaMetricsMissing", {"delta_maintenance_failing_tables": "_x6000"}, 14, 16),
        ("DeltaPlansWaiting", {"delta_maintenance_waiting_plans": "2x6000"}, 4319, 4321),
        (
            "DeltaWritersWait",
            {'delta_maintenance_table_unreported_commits{table="orders"}': "10x6000"},
            14,
            16,
        ),
        (
            "DeltaCheckpointsMissing",
            {'delta_maintenance_table_commits_since_checkpoint{table="orders"}': "501x6000"},
            359,
            361,
        ),
    ],
)
def test_each_alert_fires_when_it_should_and_no_other_does(
    tmp_path: Path, alert: str, series: dict[str, str], before: int, after: int
) -> None:
    values = STEADY | series
    (fired,) = (rule for rule in RULES if rule["alert"] == alert)
    with_table = any("table=" in name for name in series)
    labels = fired["labels"] | ({"table": "orders"} if with_table else {})
    evaluated = []
    for minutes, fires in ((before, False), (after, True)):
        for rule in RULES:
            found = [{"exp_labels": labels}] if fires and rule is fired else []
            evaluated.append(
                {"eval_time": f"{minutes}m", "alertname": rule["alert"], "exp_alerts": found}
            )
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(without_texts(tmp_path))],
                "evaluation_interval": "1m",
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [{"series": s, "values": v} for s, v in values.items()],
                        "alert_rule_test": evaluated,
                    }
                ],
            }
        )
    )
    promtool("test", "rules", file)


def without_texts(folder: Path) -> Path:
    """The rules without annotations, which contain values."""
    bare = [{k: v for k, v in rule.items() if k != "annotations"} for rule in RULES]
    file = folder / "alerts.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "bare", "rules": bare}]}))
    return file
