"""After `expire`, Delta Spark reads the rows, the row IDs and the change feed of its own DELETE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import expire
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.expire import ExpireOptions
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import copy
from tests.support.oracle.recordings import RecordedSpark

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

LIMIT = datetime(2025, 6, 15, 12, tzinfo=UTC)
ZONE = "America/Los_Angeles"
LOCAL = "2025-06-15 05:00:00"
"""The limit in this zone."""
VALUES = [
    "0005-01-01 00:00:00",
    "1883-11-18 11:00:00",
    "1969-12-31 15:59:59.999999",
    "2025-06-14 23:59:59.9999",
    "2025-06-15 04:59:59.999999",
    LOCAL,
    "2025-06-15 05:00:00.0009",
    "2025-06-16 00:00:00",
    "9999-12-31 00:00:00",
]
COLUMNS = {
    "d": ("DATE", f"DATE '{LOCAL[:10]}'"),
    "t": ("TIMESTAMP", f"TIMESTAMP '{LOCAL}'"),
    "n": ("TIMESTAMP_NTZ", f"TIMESTAMP_NTZ '{LOCAL}'"),
    "s.t": ("TIMESTAMP", f"TIMESTAMP '{LOCAL}'"),
}
"""The type of each column, and the limit in it."""
FILES = [(0, 1), (2, 3), (4, 5), (6, 7, 8), (3, None), (0, 0)]
"""The rows of each file, by their numbers in `VALUES`."""


@pytest.fixture(scope="module")
def written(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a change feed, row tracking, column mapping and a deletion vector."""
    path = tmp_path_factory.mktemp("expire") / "written"
    create(recorded_module, path)
    with recorded_module.setting("spark.sql.session.timeZone", ZONE):
        for number, values in enumerate(FILES):
            insert(recorded_module, path, number, values)
        recorded_module.sql(f"DELETE FROM delta.`{path}` WHERE id IN (10, 31)")
    return path


@pytest.fixture(scope="module")
def partitioned(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same values as partitions, which Spark writes in its own time zone."""
    path = tmp_path_factory.mktemp("expire") / "partitioned"
    create(recorded_module, path, "PARTITIONED BY (t, d)")
    every = [*range(len(VALUES)), None]
    zone = recorded_module.setting("spark.sql.session.timeZone", ZONE)
    utc = recorded_module.setting(
        "spark.databricks.delta.write.utcTimestampPartitionValues", "false"
    )
    with zone, utc:
        insert(recorded_module, path, 0, every)
    return path


@pytest.fixture(scope="module")
def unmapped(recorded_module: RecordedSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partitioned table with a change feed alone, whose files have old and new rows."""
    path = tmp_path_factory.mktemp("expire") / "unmapped"
    with recorded_module.setting("spark.sql.session.timeZone", ZONE):
        recorded_module.sql(
            f"CREATE TABLE delta.`{path}` (id BIGINT, p STRING, t TIMESTAMP) USING delta "
            "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        )
        rows = ", ".join(
            f"({number}, {part}, '{VALUES[number]}')"
            for part in ("'a b'", "NULL")
            for number in (0, 3, 5, 8)
        )
        recorded_module.sql(
            f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, p, CAST(t AS TIMESTAMP) "
            f"FROM VALUES {rows} AS given(id, p, t)"
        )
    return path


def create(spark: DeltaSpark, path: Path, by: str = "") -> None:
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, "
        f"s STRUCT<t: TIMESTAMP>) USING delta {by} TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true', 'delta.enableRowTracking' = 'true', "
        "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"
    )


def insert(spark: DeltaSpark, path: Path, number: int, values: Sequence[int | None]) -> None:
    texts = ["NULL" if value is None else f"'{VALUES[value]}'" for value in values]
    rows = ", ".join(f"({10 * number + at}, {text})" for at, text in enumerate(texts))
    spark.sql(
        f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, CAST(v AS DATE), "
        "CAST(v AS TIMESTAMP), CAST(v AS TIMESTAMP_NTZ), named_struct('t', CAST(v AS TIMESTAMP)) "
        f"FROM VALUES {rows} AS given(id, v)"
    )


def expired(path: Path, mixed: Any, column: str) -> expire.ExpireResult:
    options = ExpireOptions(
        column=column,
        older_than=timedelta(days=3),
        as_of=LIMIT + timedelta(days=3),
        mixed=mixed,
        time_zone=ZONE,
        allow_large_delete=True,
        # Files are rewritten in an order, with the recorded IDs.
        workers=1,
    )
    table, context = open_table(str(path)), RunContext.at(clock.now())
    return expire.apply(table, expire.plan(table.snapshot(), options, context), context)


@pytest.mark.conformance("CDC-05")
@pytest.mark.parametrize(
    ("mixed", "column", "table"),
    [
        ("deletion-vectors", "d", "written"),
        ("deletion-vectors", "t", "written"),
        ("deletion-vectors", "n", "written"),
        ("rewrite", "s.t", "written"),
        ("rewrite", "t", "unmapped"),
        ("leave", "t", "partitioned"),
        ("leave", "d", "partitioned"),
    ],
)
def test_spark_reads_what_its_own_delete_leaves(
    recorded_spark: RecordedSpark,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mixed: str,
    column: str,
    table: str,
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    copy(request.getfixturevalue(table), ours)
    copy(ours, theirs)
    with recorded_spark.setting("spark.sql.session.timeZone", ZONE):
        before = open_table(str(ours)).snapshot().version
        result = expired(ours, mixed, column)
        assert result.status == "expired" and result.problem is None
        recorded_spark.sql(f"DELETE FROM delta.`{theirs}` WHERE {column} < {COLUMNS[column][1]}")
        query = "SELECT *{} FROM delta.`{}`"
        tracked = ", _metadata.row_id, _metadata.row_commit_version" if table != "unmapped" else ""
        left = recorded_spark.rows(query.format(tracked, ours))
        assert left == recorded_spark.rows(query.format(tracked, theirs))
        assert left
        columns = "* EXCEPT (_commit_version, _commit_timestamp)"
        feed = f"SELECT {columns} FROM table_changes_by_path('{{}}', {{}})"
        changes = recorded_spark.rows(feed.format(ours, before + 1))
        assert changes == recorded_spark.rows(feed.format(theirs, before + 1))
        assert len(changes) == result.rows


@pytest.mark.conformance("CDC-05")
def test_spark_reads_the_changes_of_a_second_run_on_a_large_file(
    recorded_spark: RecordedSpark, tmp_path: Path
) -> None:
    """Its reader of changes fails on long differences of deletion vectors (delta-io/delta#5662)."""
    path, count = tmp_path / "large", 600_000
    recorded_spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, t TIMESTAMP) USING delta TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    days = "id % 7 * 7 % 20"
    recorded_spark.sql(
        f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, "
        f"TIMESTAMP '2025-06-01 12:00:00' + make_interval(0, 0, 0, {days}) FROM range({count})"
    )
    for limit, gone in ((2, 2), (9, 3)):
        before = open_table(str(path)).snapshot().version
        options = ExpireOptions(
            column="t",
            older_than=timedelta(days=3),
            as_of=datetime(2025, 6, 1 + limit, tzinfo=UTC) + timedelta(days=3),
            mixed="deletion-vectors",
            allow_large_delete=True,
        )
        table, context = open_table(str(path)), RunContext.at(clock.now())
        result = expire.apply(table, expire.plan(table.snapshot(), options, context), context)
        assert result.status == "expired" and result.problem is None
        recorded_spark.forget()
        [row] = recorded_spark.rows(
            f"SELECT count(DISTINCT id) AS n, count(*) AS m, min(_change_type) AS kind "
            f"FROM table_changes_by_path('{path}', {before + 1})"
        )
        assert json.loads(row) == {"n": result.rows, "m": result.rows, "kind": "delete"}
        assert abs(result.rows - gone * count / 7) < 9
