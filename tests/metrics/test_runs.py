"""The metrics of runs, and what OpenTelemetry gets of them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from delta_maintenance.cli.main import main
from delta_maintenance.metrics import runs
from delta_maintenance.metrics.definitions import OF_RUNS, OF_TABLES, RUNS, TABLES
from delta_maintenance.metrics.runs import measurements
from delta_maintenance.operations.vacuum import VacuumResult
from delta_maintenance.policies import OperationOutcome, RunResult
from delta_maintenance.policies.measuring import Cost
from tests.support.suite.reported_metrics import reported
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.assessed_tables import NOW, run_result
from tests.support.tables.table_builder import TableBuilder

COST = Cost(requests_read=7, requests_list=2, requests_delete=0, bytes_read=900, bytes_written=0)


def measured(result: RunResult) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for each in measurements(result):
        assert tuple(each.labels) == each.metric.labels
        values = found.setdefault(each.metric.name, {})
        key = tuple(each.labels.values())
        values[key] = values.get(key, 0) + each.value
    return found


def vacuum(**changes: object) -> OperationOutcome:
    result = VacuumResult(
        table="s3://lake/sales/orders", version=4, status="vacuumed", deleted=3, bytes=77
    )
    outcome = OperationOutcome(
        operation="vacuum",
        status="done",
        reason="",
        started_at=NOW,
        seconds=2.5,
        result=result.to_json(),
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]  # fields of an outcome


def test_a_run_is_counted_with_its_operations_and_their_cost() -> None:
    run = run_result()
    found = measured(replace(run, outcomes=(*run.outcomes, vacuum(cost=COST))))
    assert found == {
        "runs": {("done",): 1},
        "operations": {
            ("checkpoint", "done"): 1,
            ("vacuum", "needs-approval"): 1,
            ("vacuum", "done"): 1,
        },
        "operation_duration": {("checkpoint",): 12.4, ("vacuum",): 2.5},
        "deleted_bytes": {("vacuum",): 77},
        "store_requests": {("read",): 7, ("list",): 2},
        "store_read_bytes": {(): 900},
    }


def test_failures_have_names_of_their_own() -> None:
    failed = vacuum(status="failed", result=None, exit_status=1)
    found = measured(run_result(status="failed", exit_status=1, outcomes=(failed,)))
    assert found["failed_runs"] == {(): 1}
    assert found["failed_operations"] == {("vacuum",): 1}
    assert found["operations"] == {("vacuum", "failed"): 1}
    unread = measured(run_result(status="failed", exit_status=5, outcomes=()))
    assert unread == {"runs": {("failed",): 1}, "failed_runs": {(): 1}}


def test_a_run_that_only_plans_is_not_counted() -> None:
    assert measured(run_result(status="planned")) == {}


def test_names_are_those_of_airflow_and_prometheus() -> None:
    """And no two metrics have the same."""
    every = (*OF_TABLES, *OF_RUNS)
    for metric in every:
        assert re.fullmatch(r"delta_maintenance\.[a-z_]{1,60}", metric.in_otel)
        assert re.fullmatch(r"[a-z_]+", metric.in_prometheus)
        # Suffixes that OpenMetrics and exporters reserve.
        assert not metric.in_prometheus.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
    assert len({metric.in_prometheus for metric in every}) == len(every)
    assert len({metric.in_otel for metric in every}) == len(every)
    assert (TABLES.kind, RUNS.kind) == ("gauge", "counter")


def test_the_command_line_reports_runs_to_opentelemetry(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders")
    table.commit([protocol(), metadata()])
    for number in range(5):
        table.commit([add(f"{number}.parquet")])
    (tmp_path / "torn" / "_delta_log").mkdir(parents=True)
    (tmp_path / "torn" / "_delta_log" / f"{0:020}.json").write_text("{")
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefaults: {checkpoint: {max_commits: 3}}\ntables:\n"
        f"- {{name: orders, uri: {tmp_path}/orders}}\n- {{name: torn, uri: {tmp_path}/torn}}\n"
    )
    reported()
    assert main(["run", str(policy), "--dry-run"]) == 5
    assert reported() == {}
    assert main(["run", str(policy)]) == 5
    found = reported()
    assert found.pop("delta_maintenance.operation_duration") == {("checkpoint",): 1}
    assert found == {
        "delta_maintenance.runs": {("done",): 1, ("failed",): 1},
        "delta_maintenance.failed_runs": {(): 1},
        "delta_maintenance.operations": {("checkpoint", "done"): 1},
    }


@pytest.mark.process
def test_a_metric_that_cannot_be_reported_fails_no_run(monkeypatch: object, caplog: object) -> None:
    """Also in a process without OpenTelemetry."""
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from delta_maintenance.metrics import runs\n"
        "from tests.support.tables.assessed_tables import run_result\n"
        "runs.report(run_result())\n"
        "assert runs._instruments() == {}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    runs.report(None)  # type: ignore[arg-type]  # whatever goes wrong
