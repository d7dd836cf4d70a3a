"""Who holds files of a table: clones among all tables of the policy, and what Dagster says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_maintenance import clock
from delta_maintenance.cli.main import main
from delta_maintenance.errors import StorageAccessError
from delta_maintenance.policies.definition import Policy
from delta_maintenance_dagster import (
    DeltaMaintenanceComponent,
    DeltaSparkResource,
    DeltaStorageResource,
    DeltaTable,
    DeltaTableEntry,
    MaintenanceConfig,
    build_maintenance_asset,
)
from delta_maintenance_dagster.resources import Reference
from tests.support.markdown import markdown_rows
from tests.support.operations.held_tables import DELETING, ODD, HeldTable, option_cases
from tests.support.operations.vacuum_cases import removed
from tests.support.suite.play import some
from tests.support.tables.actions import add
from tests.support.tables.vacuum_tables import Folder

FIELDS = tuple(MaintenanceConfig.model_fields)
KEY = dg.AssetKey(["lake", "events"])


@pytest.fixture
def events(tmp_path: Path) -> Folder:
    """A table with two unreferenced files."""
    table = Folder(tmp_path / "lake" / "events", now=clock.now())
    table.log(add("x.parquet"), add("y.parquet"))
    table.log(removed("x.parquet", 90), removed("y.parquet", 90))
    table.file("x.parquet", "y.parquet")
    return table


def clone(path: Path) -> None:
    """Clones the first of the files."""
    made = Folder(path / "lake" / "copy", now=clock.now())
    made.log(add(f"file:{path}/lake/events/x.parquet"))


def holders(result: dg.ExecuteInProcessResult) -> dict[str, tuple[str, str]]:
    (event,) = result.get_asset_materialization_events()
    (metadata,) = [event.materialization.metadata]
    rows = markdown_rows(str(metadata["held_by"].value))
    return {row["holder"]: (row["files"], row["bytes"]) for row in rows}


def test_a_vacuum_of_one_table_finds_clones_that_came_after_the_last_refresh(
    events: Folder, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    entry = {"name": "lake", "pattern": f"{tmp_path}/lake/*", "vacuum": True}
    component = DeltaMaintenanceComponent(tables=[DeltaTableEntry.model_validate(entry)])
    state = tmp_path / "state.json"
    component.write_state_to_path(state)
    clone(tmp_path)
    context = dg.ComponentTree.for_test().load_context
    definitions = component.build_defs_from_state(context, state)
    result = definitions.resolve_job_def("delta_maintenance").execute_in_process(instance=instance)
    assert result.success and events.files() == {"x.parquet"}
    assert holders(result) == {f"clone {tmp_path}/lake/copy": ("1", "1 B")}


@pytest.mark.parametrize("known", [True, False])
def test_a_pattern_that_cannot_be_listed_stops_a_vacuum_unless_the_last_refresh_listed_it(
    events: Folder,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,
) -> None:
    entries: list[dict[str, Any]] = [
        {"uri": f"{tmp_path}/lake/events", "vacuum": True, "clones": {"unreadable": "block"}},
        {"pattern": f"{tmp_path}/lake/c*"},
    ]
    clone(tmp_path)
    component = DeltaMaintenanceComponent(
        tables=[DeltaTableEntry.model_validate(each) for each in entries]
    )
    state = tmp_path / "state.json"
    component.write_state_to_path(state)
    monkeypatch.setattr(
        "delta_maintenance.policies.discovery._Search.attempt",
        lambda *_: StorageAccessError("access denied"),
    )
    context = dg.ComponentTree.for_test().load_context
    definitions = component.build_defs_from_state(context, state if known else None)
    job = definitions.resolve_job_def("delta_maintenance")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert result.success is known
    assert events.files() == ({"x.parquet"} if known else {"x.parquet", "y.parquet"})


def test_an_asset_of_its_own_searches_the_policy_that_it_is_given(
    events: Folder, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    clone(tmp_path)
    entries = [{"uri": f"{tmp_path}/lake/{name}", "vacuum": True} for name in ("events", "copy")]
    policy = Policy.from_json({"version": 1, "tables": entries})
    asset = build_maintenance_asset(
        DeltaTable(policy=policy.named_tables[0], key=KEY, among=policy),
        storage=Reference(DeltaStorageResource()),
        spark=Reference(DeltaSparkResource()),
    )
    job = dg.define_asset_job("upkeep", selection=dg.AssetSelection.assets(asset))
    definitions = dg.Definitions(assets=[asset], jobs=[job])
    assert main(["keep-version", str(tmp_path / "lake" / "events"), "audit"]) == 0
    result = definitions.resolve_job_def("upkeep").execute_in_process(instance=instance)
    assert result.success and events.files() == {"x.parquet"}
    assert holders(result) == {
        f"clone {tmp_path}/lake/copy": ("1", "1 B"),
        "kept version audit": ("0", "0 B"),
    }


@pytest.mark.parametrize("holders", [{}, [], "", False, {"keep": []}], ids=str)
def test_no_option_of_the_launchpad_takes_what_the_policy_keeps(
    holders: Any, events: Folder, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    entry = {"uri": f"{tmp_path}/lake/events", "keep": [{"name": "audit", "version": 1}]}
    policy = Policy.from_json({"version": 1, "tables": [entry]})
    asset = build_maintenance_asset(
        DeltaTable(policy=policy.named_tables[0], key=KEY, among=policy),
        storage=Reference(DeltaStorageResource()),
        spark=Reference(DeltaSparkResource()),
    )
    job = dg.define_asset_job("upkeep", selection=dg.AssetSelection.assets(asset))
    config = {"operation": "vacuum", "options": {"holders": holders}}
    result = (
        dg.Definitions(assets=[asset], jobs=[job])
        .resolve_job_def("upkeep")
        .execute_in_process(
            instance=instance,
            run_config={"ops": {asset.op.name: {"config": config}}},
            raise_on_error=False,
        )
    )
    assert result.success is (holders in ("", {}, {"keep": []}))
    assert events.files() == {"x.parquet", "y.parquet"}


def test_no_option_of_the_launchpad_weakens_what_the_policy_holds(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    held = HeldTable(tmp_path, now=clock.now(), in_log=True)
    policy = Policy.from_json({"version": 1, "tables": [held.entry]})
    asset = build_maintenance_asset(
        DeltaTable(policy=policy.named_tables[0], key=KEY, among=policy),
        storage=Reference(DeltaStorageResource()),
        spark=Reference(DeltaSparkResource()),
        retry_policy=dg.RetryPolicy(max_retries=0),
    )
    job = dg.define_asset_job("upkeep", selection=dg.AssetSelection.assets(asset))
    upkeep = dg.Definitions(assets=[asset], jobs=[job]).resolve_job_def("upkeep")
    configs: list[dict[str, Any]] = [
        {"operation": operation, "options": options}
        # The launchpad gives all options to the same function of Python; its tests play the others.
        for operation, options in some([e for e in option_cases() if e[0] in DELETING], 8)
    ]
    configs += [{"operation": verb, "options": {"holders": {}}} for verb in DELETING]
    configs += [{"operation": "vacuum", name: value} for name in FIELDS for value in some(ODD, 2)]
    for config in configs:
        held.play(
            config,
            lambda config=config: (
                upkeep.execute_in_process(
                    instance=instance,
                    run_config={"ops": {asset.op.name: {"config": config}}},
                    raise_on_error=False,
                ).success
            ),
        )
