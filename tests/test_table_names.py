"""Errors and log lines of a table that was opened by its name show both, name and address."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

from delta_maintenance import errors, open_table
from delta_maintenance.catalogs.reference import CatalogReference
from delta_maintenance.cli.main import main
from delta_maintenance.errors import (
    MOST_BYTES,
    CorruptTableError,
    NotADeltaTableError,
    StorageError,
    name_at,
    remember_name,
    table_text,
)
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance_dagster import DeltaMaintenanceComponent
from tests.cli.test_policies import neglected
from tests.support.catalogs.in_memory import InMemoryCatalog, catalog_table, use_catalogs

ORDERS = "uc://prod.sales.orders"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of other tests."""
    monkeypatch.setattr(errors, "_NAMES", type(errors._NAMES)())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[InMemoryCatalog]:
    """A catalog with a table whose folder is empty."""
    (tmp_path / "orders").mkdir()
    monkeypatch.setenv("UNITY_CATALOG_URI", "https://lake")
    location = f"file://{tmp_path}/orders/"
    return use_catalogs(monkeypatch, {"https://lake": [catalog_table(ORDERS, location)]})


def test_an_error_of_a_table_that_was_opened_by_name(
    server: type[InMemoryCatalog], tmp_path: Path
) -> None:
    with pytest.raises(NotADeltaTableError) as raised:
        open_table(ORDERS).snapshot()
    assert str(raised.value).startswith(f"table {tmp_path}/orders ({ORDERS}): ")
    assert raised.value.table == f"{tmp_path}/orders"
    errors._NAMES.clear()
    # In another process.
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    with pytest.raises(NotADeltaTableError) as raised:
        open_table(tmp_path / "orders").snapshot()
    assert "uc://" not in str(raised.value)


def test_the_command_line_and_a_policy_name_both(
    server: type[InMemoryCatalog], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", ORDERS]) == 5
    assert f"{tmp_path}/orders ({ORDERS})" in capsys.readouterr().err
    path = tmp_path / "policy.yaml"
    lake = {"kind": "unity", "address": "https://lake", "catalog": "prod"}
    document = {"version": 1, "catalogs": {"lake": lake}, "tables": [{"catalog": "lake.**"}]}
    path.write_text(yaml.safe_dump(document))
    errors._NAMES.clear()
    assert main(["assess", str(path)]) == 5
    assert f"{tmp_path}/orders ({ORDERS})" in capsys.readouterr().err


def test_a_log_line_names_both(
    server: type[InMemoryCatalog], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    neglected(tmp_path / "orders")
    checkpoint = next((tmp_path / "orders" / "_delta_log").glob("*.checkpoint.parquet"))
    snapshot = open_table(ORDERS).snapshot(0)
    error = CorruptTableError("damaged", file=f"_delta_log/{checkpoint.name}")
    snapshot.avoiding(error)
    assert f"{tmp_path}/orders ({ORDERS}): skipped _delta_log/" in caplog.text


def test_dagster_and_executors_of_spark_know_the_name() -> None:
    table = PolicyTable.from_json({"name": ORDERS, "uri": "s3://lake/orders", "rules": {}})
    DeltaMaintenanceComponent()._table(table, Policy(version=1), kept=False)
    assert name_at("s3://lake/orders") == ORDERS
    options = {
        "catalog_table": "uc://prod.sales.other",
        "catalog_location": "s3://lake/other",
        "catalog_uri": "https://lake",
    }
    CatalogReference.of(options, {})
    assert "table s3://lake/other (uc://prod.sales.other)" in str(
        StorageError("S3 failed", table="s3://lake/other")
    )


def test_names_are_bounded_and_so_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "MOST_NAMES", 3)
    for number in range(5):
        remember_name(f"s3://lake/{number}", f"uc://a.b.{number}")
    remember_name("s3://lake/2", "uc://a.b.again")
    remember_name("s3://lake/5", "uc://a.b.5")
    assert [name_at(f"s3://lake/{number}") for number in (1, 2, 3, 4)] == [
        None,
        "uc://a.b.again",
        None,
        "uc://a.b.4",
    ]
    assert table_text("s3://lake/9") == "s3://lake/9"
    remember_name("s3://lake/long", f"uc://{'n' * 255}.{'n' * 255}.{'ü' * 255}")
    line = str(StorageError("x" * 2000, table="s3://lake/long", file="f" * 900))
    assert len(line.encode()) <= MOST_BYTES
    assert "uc://nnn" in line and line.endswith(StorageError("x").remedy or "")
