"""The asset events of a policy's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import Asset, AssetAlias

from delta_maintenance_airflow.operators.policy import DeltaPolicyRunOperator
from delta_maintenance_airflow.tasks import asset_uri
from tests.support.tables.table_builder import TableBuilder

ASSET = Asset(name="maintained", uri="s3://lake/events?maintenance=run")
ALIAS = AssetAlias("maintenance")


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Wants a checkpoint every five commits, and nothing else."""
    path = tmp_path / "policy.yaml"
    rules = {"checkpoint": {"max_commits": 5}, "clean_log": False, "vacuum": False}
    path.write_text(yaml.safe_dump({"version": 1, "defaults": rules, "tables": []}))
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", str(tmp_path / "kept"))
    return str(path)


def run(table: str, policy: str, **arguments: Any) -> DeltaPolicyRunOperator:
    return DeltaPolicyRunOperator(
        task_id="run", table={"uri": table}, policy=policy, outlets=[ASSET, ALIAS], **arguments
    )


def test_a_run_reports_to_its_outlets(
    neglected_table: TableBuilder, policy: str, task_context: dict[str, Any], tmp_path: Path
) -> None:
    run(neglected_table.store.root, policy).execute(task_context)
    events = task_context["outlet_events"]
    extra = {"delta_version": 9, "status": "done", "operations": ["checkpoint: done"]}
    assert events[ASSET].extra == extra
    events[ALIAS].add.assert_called_once()
    (asset,), told = events[ALIAS].add.call_args
    assert asset.uri == f"{(tmp_path / 'table').as_uri()}?maintenance=run"
    assert told == {"extra": extra}


def test_a_planned_or_failed_run_sends_no_outlet_event(
    neglected_table: TableBuilder, policy: str, task_context: dict[str, Any]
) -> None:
    run(neglected_table.store.root, policy, plan_only=True).execute(task_context)
    neglected_table.drop(f"{4:020}.json")
    with pytest.raises(Exception, match="4"):
        run(neglected_table.store.root, policy).execute(task_context)
    assert not task_context["outlet_events"]


@pytest.mark.parametrize(
    "address", ["s3://lake/a b", "file:///lake/a%20b", "abfss://c@a.dfs.core.windows.net/t"]
)
def test_an_address_with_a_scheme_is_already_the_uri_of_the_asset(address: str) -> None:
    assert asset_uri(address) == address


def test_a_path_becomes_a_file_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asset_uri("/lake/a b") == "file:///lake/a%20b"
    assert asset_uri("events") == f"{tmp_path.as_uri()}/events"
