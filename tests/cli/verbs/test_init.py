"""`init` writes files that work as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from delta_maintenance.policies.definition import load_policy
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.table_builder import TableBuilder


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
        ("policy.schema.json", True),
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


def _table(folder: Path, *actions: Any) -> str:
    builder = TableBuilder(folder)
    builder.commit([protocol(), metadata(), *actions])
    return str(builder.store.root)


def test_a_scan_lists_the_tables_and_writes_a_policy_that_finds_them(
    cli: Any, tmp_path: Path
) -> None:
    many = TableBuilder(tmp_path / "lake/many")
    many.commit([protocol(), metadata()])
    for number in range(120):
        many.commit([add(f"{number}.parquet", size=10)])
    _table(tmp_path / "lake/deep/er/idle")
    broken = TableBuilder(tmp_path / "lake/broken")
    broken.commit([protocol(), metadata()])
    (tmp_path / "lake/broken/_delta_log/00000000000000000002.json").write_text("{}")
    told = cli("init", "airflow", tmp_path / "lake", "--folder", tmp_path)
    assert told.status == 0
    # The table with the most work comes first.
    assert told.out.splitlines()[1].split()[0] == "lake/many"
    assert "on 2 of 3 tables" in told.out
    (checkpoint,) = [line for line in told.out.splitlines() if "leave 0 of 121" in line]
    assert checkpoint.split()[:2] == ["checkpoint", "1"]
    assert "wait for your approval" in told.out
    assert told.err.count("\n") == 1 and "lake/broken" in told.err

    policy = load_policy(tmp_path / "policy.yaml")
    assert policy.defaults.value("optimize") is not None
    assert policy.defaults.approval == ("vacuum",)
    assessed = cli("assess", tmp_path / "policy.yaml", "--json").document
    assert {row["name"] for row in assessed} == {"lake/many", "lake/deep/er/idle", "lake/broken"}
    assert (tmp_path / "delta_maintenance_dags.py").exists()


def test_a_list_names_tables_and_folders_with_any_names(cli: Any, tmp_path: Path) -> None:
    one = _table(tmp_path / "it's \"é: {x} #1\u2028")
    two = _table(tmp_path / "a/same")
    three = _table(tmp_path / "b/same/inner")
    assert "on 1 table:" in cli("init", "policy", one, "--folder", tmp_path / "first").out
    file = tmp_path / "tables.txt"
    file.write_text(f"# ours\n{one}\n\n{two}/\n{two}\n{tmp_path}/b/same\n", encoding="utf-8")
    told = cli("init", "policy", "--list", file, "--folder", tmp_path, "--json")
    assert sorted(row["uri"] for row in told.document["tables"]) == sorted([one, two, three])
    policy = load_policy(tmp_path / "policy.yaml")
    assert [table.uri for table in policy.named_tables] == [one, two]
    assert [entry.pattern for entry in policy.patterns] == [f"{tmp_path}/b/same/**"]
    assert [entry.name for entry in policy.tables][1:] == ["same", "same-2"]


def test_a_table_with_clustering_columns_brings_the_rule_for_them(cli: Any, tmp_path: Path) -> None:
    from tests.support.tables.actions import domain, features

    columns = {"clusteringColumns": [["id"]]}
    _table(
        tmp_path / "lake/sorted",
        features("clustering", "domainMetadata"),
        domain("delta.clustering", columns),
    )
    cli("init", "policy", tmp_path / "lake", "--folder", tmp_path)
    assert load_policy(tmp_path / "policy.yaml").defaults.value("cluster") is not None


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("{}/lake/*", "wildcard"),
        ("uc://main.sales.orders", "catalog"),
        ("{}/empty", "no Delta table"),
        ("{}/nowhere", "nowhere"),
        ("--list={}/nowhere", "the list of addresses cannot be read"),
        ("--list={}/list", "the list names no address"),
    ],
)
def test_an_address_without_tables_is_one_line_and_writes_nothing(
    cli: Any, tmp_path: Path, address: str, told: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "list").write_text("# nothing yet\n\n")
    ended = cli("init", "policy", address.format(tmp_path), "--folder", tmp_path / "new")
    # A folder without tables is a warning, which comes before the error.
    *warnings, error = ended.err.splitlines()
    assert (ended.status, ended.out) == (2, "") and told in error
    assert all("warning: no table matches" in line for line in warnings)
    assert not (tmp_path / "new").exists()


@pytest.mark.dagster
@pytest.mark.filterwarnings("ignore:.parse_obj_as:DeprecationWarning")
def test_the_component_of_a_scan_has_the_tables(cli: Any, tmp_path: Path) -> None:
    from delta_maintenance_dagster import DeltaMaintenanceComponent

    _table(tmp_path / "lake/orders")
    cli("init", "dagster", tmp_path / "lake/orders", "--folder", tmp_path)
    written = yaml.safe_load((tmp_path / "defs.yaml").read_text())
    component = DeltaMaintenanceComponent.resolve_from_yaml(yaml.safe_dump(written["attributes"]))
    assert component.policy == tmp_path / "policy.yaml"
