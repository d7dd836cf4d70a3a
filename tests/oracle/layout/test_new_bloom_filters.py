"""Delta Spark on files for which `optimize` was asked for bloom filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import DeltaTable
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import copy, create

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ROWS, GROUP = 6000, 500
WANTED = "s = 'text 4711'"


def scanned(spark: DeltaSpark, path: Path) -> tuple[int, int]:
    """The rows that a scan returns to the filter above it, and those that remain."""
    spark.forget()
    with spark.setting("spark.sql.adaptive.enabled", "false"):
        frame = spark.jvm_session().sql(f"SELECT * FROM delta.`{path}` WHERE {WANTED}")
        rows = len(frame.collectAsList())
        leaves = frame.queryExecution().executedPlan().collectLeaves()
    metrics: list[Any] = [leaves.apply(at).metrics() for at in range(leaves.size())]
    read = [m.apply("numOutputRows").value() for m in metrics if m.contains("numFiles")]
    return sum(read), rows


@pytest.mark.conformance("RW-25")
def test_row_groups_without_the_value_are_not_read(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    first, other = tmp_path / "with", tmp_path / "without"
    create(delta_spark, first, "id BIGINT, s STRING")
    for part in range(2):
        # In a random order, so that the bounds of all row groups contain the value.
        delta_spark.sql(
            f"INSERT INTO delta.`{first}` SELECT /*+ COALESCE(1) */ id, concat('text ', id) "
            f"FROM (SELECT id FROM range({ROWS}) WHERE id % 2 = {part} ORDER BY hash(id))"
        )
    copy(first, other)
    assert scanned(delta_spark, first)[1] == 1
    for path, bloom in ((first, ("s",)), (other, ())):
        done = DeltaTable(str(path)).optimize(bloom=bloom, row_group_rows=GROUP)
        assert done.files_after == 1
    read, found = scanned(delta_spark, other)
    assert (read, found) == (ROWS, 1)
    read, found = scanned(delta_spark, first)
    assert found == 1 and read <= 2 * GROUP
