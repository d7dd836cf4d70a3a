"""The recipes of the documentation: each is loaded and run as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing.utils import component_defs, create_defs_folder_sandbox

from delta_maintenance import open_table
from delta_maintenance_dagster import DeltaMaintenanceComponent
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "dagster-recipes.md"
TABLE = dg.AssetKey(["sales", "orders"])
MAINTENANCE = dg.AssetKey(["sales", "orders", "maintenance"])


def recipe(title: str) -> str:
    """The code of the section with these words in its title."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (section,) = [each for each in sections if title in each.partition("\n")[0]]
    found = re.search(r"```(?:python|yaml)\n(.*?)```", section, flags=re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKE", str(tmp_path))
    return tmp_path


def loaded(title: str) -> dg.Definitions:
    """The definitions of a recipe in Python: its own, and those of its component."""
    module = ModuleType("recipe")
    exec(compile(recipe(title), str(PAGE), "exec", dont_inherit=True), module.__dict__)
    context = dg.ComponentTree.for_test().load_context
    component: Any = module.__dict__["load"](context)
    return dg.Definitions.merge(module.__dict__["defs"], component_defs(component=component))


def checkpoint_of(lake: Path) -> Any:
    return open_table(str(lake / "sales/orders")).snapshot().log.checkpoint


def maintained(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    job = definitions.resolve_job_def("delta_maintenance")
    assert job.execute_in_process(instance=instance).success


@pytest.mark.parametrize("package", ["dagster_deltalake", "dagster_delta"])
def test_tables_of_io_managers(package: str, lake: Path, instance: dg.DagsterInstance) -> None:
    pytest.importorskip(package, reason="NO IO MANAGER: install the development dependencies")
    definitions = loaded(f"`{package.replace('_', '-')}`")
    job = definitions.resolve_implicit_global_asset_job_def()
    for _ in range(2):
        assert job.execute_in_process(instance=instance, asset_selection=[TABLE]).success
    assert checkpoint_of(lake) is None
    maintained(definitions, instance)
    assert checkpoint_of(lake) is not None


def test_partitioned_assets(lake: Path, instance: dg.DagsterInstance) -> None:
    pytest.importorskip("dagster_deltalake", reason="NO IO MANAGER: install the dependencies")
    definitions = loaded("Partitioned assets")
    job = definitions.resolve_implicit_global_asset_job_def()
    for region in ("east", "west"):
        assert job.execute_in_process(
            instance=instance, asset_selection=[TABLE], partition_key=region
        ).success
    maintained(definitions, instance)
    assert checkpoint_of(lake) is not None
    graph = definitions.resolve_asset_graph()
    assert graph.get(MAINTENANCE).partitions_def is None


def overdue_table(lake: Path) -> TableBuilder:
    table = TableBuilder(lake / "sales/orders")
    table.commit([protocol(), metadata()])
    table.commit([add("0.parquet")])
    return table


def test_automation_conditions_by_post_processing(lake: Path, instance: dg.DagsterInstance) -> None:
    overdue_table(lake)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=DeltaMaintenanceComponent)
        (path / "defs.yaml").write_text(recipe("post_processing"))
        with sandbox.build_all_defs() as definitions:
            graph = definitions.resolve_asset_graph()
            assert graph.get(MAINTENANCE).metadata["team"] == "platform"
            assert graph.get(TABLE).automation_condition is None
            first = dg.evaluate_automation_conditions(defs=definitions, instance=instance)
            observed = dg.AssetObservation(TABLE, tags={"dagster/data_version": "1"})
            instance.report_runless_asset_event(observed)
            second = dg.evaluate_automation_conditions(
                defs=definitions, instance=instance, cursor=first.cursor
            )
            assert first.total_requested == 0
            assert second.get_num_requested(MAINTENANCE) == 1


def test_after_every_n_materializations(lake: Path, instance: dg.DagsterInstance) -> None:
    overdue_table(lake)
    definitions = loaded("After every N")
    sensor = definitions.resolve_sensor_def("every_ten_materializations")
    repository = definitions.get_repository_def()

    def requested(cursor: str | None) -> tuple[list[dg.RunRequest], str | None]:
        with dg.build_sensor_context(
            instance=instance, cursor=cursor, repository_def=repository
        ) as context:
            found = sensor.evaluate_tick(context)
            return list(found.run_requests or ()), found.cursor

    for _ in range(9):
        instance.report_runless_asset_event(dg.AssetMaterialization(TABLE))
    assert requested(None)[0] == []
    instance.report_runless_asset_event(dg.AssetMaterialization(TABLE))
    (request,), cursor = requested(None)
    assert request.asset_selection == [MAINTENANCE]
    assert requested(cursor)[0] == []
