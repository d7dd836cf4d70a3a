"""Failures that are acknowledged on the command line, in runs of Dagster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from delta_maintenance.cli.main import main
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

Load = Callable[..., dg.Definitions]


@pytest.fixture
def loaded(tmp_path: Path, load: Load) -> Callable[..., dg.Definitions]:
    """The definitions of a policy with a torn and a sound table, in one step or in two."""
    for name in ("torn", "sound"):
        table = TableBuilder(tmp_path / name)
        table.commit([protocol(), metadata()])
        for number in range(3):
            table.commit([add(f"{number}.parquet")])
    (tmp_path / "torn/_delta_log" / f"{1:020}.json").write_bytes(b"{")
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "defaults": {"checkpoint": {"max_commits": 2}},
                "tables": [
                    {"name": name, "uri": str(tmp_path / name), "owner": "sales"}
                    for name in ("torn", "sound")
                ],
            }
        )
    )

    def made(per_step: int = 2) -> dg.Definitions:
        execution = {"tables_per_step": per_step, "state": str(tmp_path / "state")}
        return load(policy=str(policy), execution=execution)

    return made


def run(definitions: dg.Definitions, job: str, instance: dg.DagsterInstance) -> Any:
    found = definitions.resolve_job_def(job)
    return found.execute_in_process(instance=instance, raise_on_error=False)


@pytest.mark.parametrize("per_step", [1, 2])
def test_acknowledged_failures_fail_no_run_and_their_checks_warn(
    loaded: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    tmp_path: Path,
    per_step: int,
) -> None:
    definitions = loaded(per_step)
    assert not run(definitions, "delta_maintenance", instance).success
    failed = run(definitions, "delta_maintenance_health", instance)
    assert not failed.success
    assert {each.severity for each in checks(failed, "torn")} == {dg.AssetCheckSeverity.ERROR}

    words = ["acknowledge", "torn", "--state", str(tmp_path / "state"), "--until", "1d"]
    assert main([*words, "--reason", "restored on Monday", "--by", "ann"]) == 0
    for job in ("delta_maintenance", "delta_maintenance_health"):
        known = run(definitions, job, instance)
        assert known.success
        found = checks(known, "torn")
        assert len(found) == 8 and not any(each.passed for each in found)
        assert {each.severity for each in found} == {dg.AssetCheckSeverity.WARN}
        assert found[0].description.startswith("acknowledged by ann until ")
    maintenance = dg.AssetKey(["torn", "maintenance"])
    assert instance.get_latest_materialization_event(maintenance) is None
    (record,) = instance.fetch_observations(maintenance, limit=1).records
    assert record.asset_observation is not None
    assert "restored on Monday" in str(record.asset_observation.metadata["acknowledged"].value)

    (tmp_path / "torn/_delta_log" / f"{1:020}.json").unlink()
    assert not run(definitions, "delta_maintenance", instance).success, "another failure is new"


def checks(result: Any, table: str) -> list[Any]:
    found = result.get_asset_check_evaluations()
    return [each for each in found if each.asset_key == dg.AssetKey([table])]


def test_a_folder_that_cannot_be_reached_is_a_warning(
    load: Load, instance: dg.DagsterInstance, table: TableBuilder, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    definitions = load(
        tables=[{"uri": table.store.root, "key": "events"}],
        defaults={"checkpoint": {"max_commits": 3}},
        execution={"state": str(tmp_path / "file/state")},
    )
    assert run(definitions, "delta_maintenance", instance).success
    assert any("checkpoint" in name for name in table.names())
