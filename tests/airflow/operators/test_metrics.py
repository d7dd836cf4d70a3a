"""The metrics of a run, as Airflow sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider

from delta_maintenance.policies import RunResult
from delta_maintenance_airflow import policy_work
from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from tests.support.suite.reported_metrics import Values, new_reader, values_of
from tests.support.tables.assessed_tables import run_result
from tests.support.tables.table_builder import TableBuilder


@pytest.fixture
def sent() -> Iterator[Callable[[], Values]]:
    """What Airflow's own client of OpenTelemetry has sent since the last call."""
    stats = pytest.importorskip("airflow.sdk.observability.stats", reason="since Airflow 3.2")
    if not hasattr(stats, "initialize"):
        pytest.skip("BEFORE AIRFLOW 3.3: the client cannot be exchanged")
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger

    reader = new_reader()
    provider = MeterProvider([reader])
    client = SafeOtelLogger(provider, prefix="airflow")
    stats.initialize(factory=lambda: client, export_legacy_names=True)
    yield lambda: values_of(reader)
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
    provider.shutdown()


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "policy.yaml"
    rules = {"checkpoint": {"max_commits": 5}}
    path.write_text(yaml.safe_dump({"version": 1, "defaults": rules, "tables": []}))
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    return str(path)


def test_a_task_reports_its_run(
    sent: Callable[[], Values],
    neglected_table: TableBuilder,
    policy: str,
    task_context: dict[str, Any],
) -> None:
    def run(**arguments: Any) -> None:
        table = {"uri": neglected_table.store.root}
        DeltaPolicyRunOperator(task_id="run", table=table, policy=policy, **arguments).execute(
            task_context
        )

    run(plan_only=True)
    assert sent() == {}
    run()
    assert sent() == {
        "airflow.delta_maintenance.runs": {("done",): 1},
        "airflow.delta_maintenance.operations": {("checkpoint", "done"): 1},
        "airflow.delta_maintenance.operation_duration": {("checkpoint",): 1},
    }
    neglected_table.drop(f"{4:020}.json")
    neglected_table.drop(f"{9:020}.checkpoint.parquet")
    with pytest.raises(Exception, match="4"):
        run()
    assert sent() == {
        "airflow.delta_maintenance.runs": {("failed",): 1},
        "airflow.delta_maintenance.failed_runs": {(): 1},
    }


def test_a_metric_that_cannot_be_sent_fails_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no such metric")

    monkeypatch.setattr(policy_work.Stats, "incr", fails)
    result: RunResult = run_result()
    policy_work.report_metrics(result)
    assert "the metrics of a run were not reported" in caplog.text
