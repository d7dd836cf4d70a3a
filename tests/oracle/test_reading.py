"""At every version, our reader says of a table what Delta Spark and deltalake say of it."""

from __future__ import annotations

import pytest

from delta_maintenance import open_table
from tests.support.oracle.delta_spark_tables import RECIPES, comparable
from tests.support.oracle.delta_views import deltalake_view, our_view, spark_view
from tests.support.oracle.oracle_tables import Bench

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]


@pytest.mark.conformance(
    "REC-01", "REC-02", "REC-03", "REC-04", "REC-06", "REC-08", "REC-09", "CKPT-02"
)
@pytest.mark.conformance("DV-01", "DV-03", "DV-05", "CM-03", "STAT-01", "PART-01", "PART-03")
@pytest.mark.parametrize("name", RECIPES)
def test_every_version_equals_that_of_delta_spark(bench: Bench, name: str) -> None:
    path = bench.table(name)
    table = open_table(str(path))
    for version, actions in bench.spark.replay(path):
        ours = our_view(table.snapshot(version=version))
        theirs = spark_view(version, actions)
        assert comparable(name, ours) == comparable(name, theirs), f"version {version}"
    assert our_view(table.snapshot()) == ours


@pytest.mark.parametrize("name", RECIPES)
def test_every_version_has_the_files_that_deltalake_sees(bench: Bench, name: str) -> None:
    path = bench.table(name)
    table = open_table(str(path))
    for version in range(table.latest_version() + 1):
        files = table.snapshot(version=version).live_files()
        ours = sorted((row["path"], row["size"], row["num_records"]) for row in files.to_pylist())
        theirs = [
            (row["path"], row["size_bytes"], row["num_records"])
            for row in deltalake_view(path, version)
        ]
        assert ours == theirs, f"version {version}"


@pytest.mark.parametrize("name", RECIPES)
def test_the_history_equals_that_of_delta_spark(bench: Bench, name: str) -> None:
    path = bench.table(name)
    ours = [
        {"version": entry.version, "ms": entry.timestamp_ms, "operation": entry.operation}
        for entry in open_table(str(path)).history()
    ]
    assert ours == bench.spark.history(path)
