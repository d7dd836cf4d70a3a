"""A job shows the name that its table has in a catalog, whether or not that vends credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delta_maintenance import errors
from delta_maintenance.errors import InvalidRequestError, StorageError, name_at, remember_name
from delta_maintenance.spark import executor_options, job
from delta_maintenance.storage import open_store
from delta_maintenance.submission import JobSpec, read_report
from tests.cli.test_policies import neglected

NAME = "uc://prod.sales.orders"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the names that this process opened before: a driver is a new one."""
    monkeypatch.setattr(errors, "_NAMES", type(errors._NAMES)())


def test_lines_and_errors_of_a_job_show_the_name(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, report = tmp_path / "orders", tmp_path / "report.json"
    neglected(orders)
    spec = {"operation": "vacuum", "table": str(orders), "catalog_name": NAME}
    assert job.main(["--spec", json.dumps(spec)]) == 0
    assert f"delta-maintenance: {orders} ({NAME}), version 5: " in capsys.readouterr().out
    spec["table"] = str(tmp_path / "none")
    assert job.main(["--spec", json.dumps(spec), "--report", str(report)]) == 5
    line = f"table {tmp_path}/none ({NAME}): "
    assert f"delta-maintenance: {line}" in capsys.readouterr().out
    # The process that reads the report need not know the name.
    errors._NAMES.clear()
    error = read_report(report).error
    assert error is not None and str(error.to_error()).startswith(line)


@pytest.mark.parametrize("address", ["s3://lake/orders", "/lake/orders", "gs://lake/orders"])
def test_executors_are_told_the_name_and_nothing_else_of_the_catalog(address: str) -> None:
    environment = {"UNITY_CATALOG_URI": "https://lake", "UNITY_CATALOG_TOKEN": "canary"}
    assert executor_options(address, {}, environment) == {}
    remember_name(address, NAME)
    options = executor_options(address, {}, environment)
    assert options.keys() == {"catalog_table", "catalog_location", "catalog_access"}
    errors._NAMES.clear()
    open_store(address, {**options, "anon": "true"} if "s3" in address else options).close()
    assert name_at(address) == NAME
    assert f"table {address} ({NAME})" in str(StorageError("it is down", table=address))


def test_a_specification_with_another_name_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not the name of a table in a catalog"):
        JobSpec(operation="checkpoint", table="/t", catalog_name="s3://key:secret@lake/orders")
