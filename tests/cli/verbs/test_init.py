"""`init` writes files that work as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.policies.definition.policy import load_policy
from delta_maintenance.testing.actions import add, metadata, protocol
from delta_maintenance.testing.table_builder import TableBuilder


def test_the_policy_finds_the_tables_on_this_machine(cli: Any, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "lake/sales/orders")
    table.commit([protocol(), metadata()])
    table.commit([add("a.parquet")])
    told = cli("init", "policy", "--folder", tmp_path)
    assert told.status == 0 and str(tmp_path / "policy.yaml") in told.out
    assessed = cli("assess", tmp_path / "policy.yaml", "--json")
    assert assessed.status == 0
    assert [row["name"] for row in assessed.document] == ["local/sales/orders"]
    commented = (tmp_path / "policy.yaml").read_text().replace("  # - name", "  - name")
    for key in ("uri", "storage", "other_writers"):
        commented = commented.replace(f"  #   {key}:", f"    {key}:")
    (tmp_path / "policy.yaml").write_text(commented)
    (named,) = load_policy(tmp_path / "policy.yaml").named_tables
    assert named.rules.storage.connection == "lake"
    assert named.rules.other_writers == "conditional_put"


def test_the_dag_file_names_the_policy_and_nothing_is_replaced(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("mine")
    told = cli("init", "airflow", "--folder", tmp_path, "--json")
    assert [(Path(row["file"]).name, row["written"]) for row in told.document] == [
        ("policy.yaml", False),
        ("delta_maintenance_dags.py", True),
    ]
    assert (tmp_path / "policy.yaml").read_text() == "mine"
    text = (tmp_path / "delta_maintenance_dags.py").read_text()
    compile(text, "delta_maintenance_dags.py", "exec")
    assert f'delta_maintenance_dags(policy="{tmp_path}/policy.yaml")' in text


@pytest.mark.dagster
@pytest.mark.filterwarnings("ignore:.parse_obj_as:DeprecationWarning")
def test_the_component_loads(cli: Any, tmp_path: Path) -> None:
    from delta_maintenance_dagster import DeltaMaintenanceComponent

    cli("init", "dagster", "--folder", tmp_path)
    written = yaml.safe_load((tmp_path / "defs.yaml").read_text())
    assert written["type"] == "delta_maintenance_dagster.DeltaMaintenanceComponent"
    component = DeltaMaintenanceComponent.resolve_from_yaml(yaml.safe_dump(written["attributes"]))
    assert [table.uri for table in component.tables] == [f"{tmp_path}/lake/events"]


def test_a_folder_that_cannot_be_written_is_one_line(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = cli("init", "policy", "--folder", tmp_path / "file")
    assert (told.status, told.err.count("\n")) == (2, 1)
    assert "cannot be written" in told.err
