"""Delta Spark accepts our statistics where it asks for a command that it lacks, and no reader loses
a row by them.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from delta_maintenance.storage.local import LocalStore
from tests.support.operations.statistics_repair import planned, recompute
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, duck
from tests.support.oracle.recordings import RecordedSpark

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]
__all__ = ["duck"]

COLLECT = "spark.databricks.delta.stats.collect"
PREDICATES = (
    "x > 150",
    "x > 5000",
    "isnan(x)",
    "x < 2",
    "s >= 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyz'",
    "s IS NULL",
    "d > 1234567890123456789.11",
    "i BETWEEN 3 AND 4",
    "t >= TIMESTAMP '2024-01-01 00:00:00.000999'",
    "n.y = 7",
)


def without_statistics(spark: DeltaSpark, path: Path, *properties: str) -> None:
    """Creates a table whose files have no statistics at all."""
    listed = f"TBLPROPERTIES ({', '.join(properties)})" if properties else ""
    with spark.setting(COLLECT, "false"):
        spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, s STRING) USING delta {listed}")
        for first in (0, 100):
            spark.sql(
                f"INSERT INTO delta.`{path}` SELECT id, CAST(id AS STRING) "
                f"FROM range({first}, {first + 50})"
            )


def refusal(spark: DeltaSpark, statement: str) -> str:
    with pytest.raises(Exception, match="DELTA_") as caught:
        spark.sql(statement)
    return str(caught.value)


@pytest.mark.conformance("STAT-08", "RT-02")
def test_row_tracking_can_be_enabled_afterwards(
    recorded_spark: RecordedSpark, tmp_path: Path
) -> None:
    spark, path = recorded_spark, tmp_path / "table"
    without_statistics(spark, path)
    enable = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    assert "DELTA_ROW_ID_ASSIGNMENT_WITHOUT_STATS" in refusal(spark, enable)
    result = recompute(LocalStore(str(path)))
    assert (result.status, result.files_decoded, result.num_skipped) == ("recomputed", 0, 0)
    spark.forget()
    spark.sql(enable)
    rows = spark.rows(f"SELECT DISTINCT _metadata.row_id FROM delta.`{path}`")
    assert len(rows) == 100


@pytest.mark.conformance("STAT-08")
def test_a_table_can_be_cloned_with_row_tracking_afterwards(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    spark, path, clone = delta_spark, tmp_path / "table", tmp_path / "clone"
    without_statistics(spark, path)
    statement = (
        f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{path}` "
        "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"
    )
    assert "DELTA_CLONE_WITH_ROW_TRACKING_WITHOUT_STATS" in refusal(spark, statement)
    assert recompute(LocalStore(str(path))).status == "recomputed"
    spark.forget()
    spark.sql(statement)
    assert len(spark.rows(f"SELECT id FROM delta.`{clone}`")) == 100


@pytest.mark.conformance("STAT-03", "CLU-03")
@pytest.mark.parametrize("clustered", [False, True])
def test_readers_find_the_same_rows_with_and_without_skipping(
    recorded_spark: RecordedSpark, duck: DuckDb, tmp_path: Path, clustered: bool
) -> None:
    spark, path = recorded_spark, tmp_path / "table"
    by = "CLUSTER BY (x, s)" if clustered else ""
    with spark.setting(COLLECT, "false"):
        spark.sql(
            f"CREATE TABLE delta.`{path}` (x DOUBLE, s STRING, d DECIMAL(38,2), i INT, "
            f"t TIMESTAMP, n STRUCT<y: BIGINT>, a ARRAY<INT>) USING delta {by} "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        for values in (
            "(1.0D, 'a', 1.5BD, 1, TIMESTAMP '1899-12-31 23:59:59.000001', "
            "named_struct('y', 7L), array(1)), (double('NaN'), repeat('y', 40), "
            "1234567890123456789.12BD, 2, NULL, NULL, NULL), (5.0D, NULL, NULL, 3, NULL, NULL, "
            "NULL)",
            "(double('NaN'), NULL, NULL, 4, TIMESTAMP '2024-01-01 00:00:00.000999', NULL, "
            "array(CAST(NULL AS INT)))",
            "(double('Infinity'), 'b', -1.5BD, NULL, NULL, NULL, NULL), "
            "(-0.0D, 'c', 0.0BD, 3, NULL, NULL, NULL)",
        ):
            spark.sql(f"INSERT INTO delta.`{path}` VALUES {values}")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE x = 5.0")
    before = {each: _found(spark, path, each) for each in PREDICATES}
    assert any(before.values())
    result = recompute(LocalStore(str(path)))
    assert (result.status, result.num_skipped) == ("recomputed", 0)
    assert planned(LocalStore(str(path))).is_noop
    spark.forget()
    for predicate, rows in before.items():
        assert _found(spark, path, predicate) == rows, predicate
        # No file is skipped for such an expression.
        assert _found(spark, path, f"coalesce({predicate}, false)") == rows, predicate
        count = f"SELECT count(*) FROM delta_scan('{path}') WHERE {predicate}"
        assert duck.number(count) == len(rows), predicate
    # Statistics are used: no file with such a value, so none is read.
    assert spark.data_files(path, "i < -100") == set()


def test_a_file_that_nan_blind_bounds_hide_is_read_again(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"x": [1.0, float("nan"), 7.0]}))
    assert delta_spark.data_files(path, "x > 150") == set()
    assert recompute(LocalStore(str(path)), check_writers=True).files_recomputed == 1
    delta_spark.forget()
    assert len(delta_spark.data_files(path, "x > 150")) == 1


def _found(spark: DeltaSpark, path: Path, predicate: str) -> list[str]:
    return sorted(spark.rows(f"SELECT * FROM delta.`{path}` WHERE {predicate}"))
