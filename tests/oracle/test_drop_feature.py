"""Delta Spark continues after our drop, whose protocol equals that of its own drop."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from delta_maintenance import clock, open_table
from delta_maintenance.operations import drop_feature
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.delta_spark_tables import copy
from tests.support.oracle.oracle_tables import Bench
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.suite.play import PLAY
from tests.support.tables.droppable_tables import comparable

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]


@dataclass(frozen=True)
class Case:
    """A table that Delta Spark writes, and the feature that it is to lose."""

    feature: str
    properties: str = ""
    statements: Sequence[str] = ()
    """With `{t}` for the table."""
    truncate: bool = False


CHECKED = "'delta.feature.vacuumProtocolCheck' = 'supported'"
CASES = {
    "vectors": Case(
        "deletionVectors",
        "'delta.enableDeletionVectors' = 'true'",
        # Vectors that only tombstones have left.
        ("DELETE FROM {t} WHERE id = 3", "DELETE FROM {t}", "INSERT INTO {t} VALUES (1, 'n')"),
    ),
    "v2-checkpoints": Case("v2Checkpoint", "'delta.checkpointPolicy' = 'v2'"),
    "row-tracking": Case(
        "rowTracking",
        "'delta.enableRowTracking' = 'true'",
        ("UPDATE {t} SET name = 'x' WHERE id = 1",),
    ),
    "commit-times": Case(
        "inCommitTimestamp",
        "",
        ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",),
    ),
    "vacuum-check": Case(
        "vacuumProtocolCheck", "'delta.feature.vacuumProtocolCheck' = 'supported'"
    ),
    "vacuum-check-truncated": Case(
        "vacuumProtocolCheck", "'delta.feature.vacuumProtocolCheck' = 'supported'", truncate=True
    ),
    "constraints": Case(
        "checkConstraints",
        "",
        (
            "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)",
            "ALTER TABLE {t} DROP CONSTRAINT positive",
        ),
    ),
    "mapping": Case(
        "columnMapping",
        "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'",
        (
            "ALTER TABLE {t} RENAME COLUMN name TO label",
            "ALTER TABLE {t} ADD COLUMN gone LONG",
            "INSERT INTO {t} VALUES (8, 'm', 9)",
            "ALTER TABLE {t} DROP COLUMN gone",
            "DELETE FROM {t} WHERE id = 2",
        ),
    ),
    "mapping-of-logical-names": Case(
        "columnMapping",
        "",
        ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",),
    ),
    "domains": Case("domainMetadata", "'delta.feature.domainMetadata' = 'supported'"),
}


RARE = {"mapping-of-logical-names"}
"""Cases that only `make nightly` plays."""


def written(spark: DeltaSpark, case: Case, path: Path) -> Path:
    properties = f"TBLPROPERTIES ({case.properties})" if case.properties else ""
    table = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {table} (id LONG, name STRING) USING delta {properties}")
    spark.sql(f"INSERT INTO {table} SELECT id + 1, 'n' FROM range(6)")
    for statement in case.statements:
        spark.sql(statement.format(t=table))
    return path


def dropped(table: Table, case: Case) -> drop_feature.DropFeatureResult:
    options = DropFeatureOptions(feature=case.feature, truncate_history=case.truncate)
    plan = drop_feature.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
    return drop_feature.apply(table, plan)


@pytest.mark.conformance("FEAT-14", "FEAT-15", "RT-20", "DOM-05", "RW-38")
@pytest.mark.parametrize("name", [name for name in CASES if PLAY == "all" or name not in RARE])
def test_delta_spark_drops_to_the_same_protocol_and_continues(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    spark, case = bench.spark, CASES[name]
    ours = written(spark, case, tmp_path / "ours")
    theirs = copy(ours, tmp_path / "theirs")
    rows = spark.rows(f"SELECT * FROM delta.`{ours}`")
    last = open_table(str(ours)).latest_version()

    result = dropped(open_table(str(ours)), case)
    assert result.status == "dropped"
    suffix = " TRUNCATE HISTORY" if case.truncate else ""
    spark.sql(f"ALTER TABLE delta.`{theirs}` DROP FEATURE {case.feature}{suffix}")

    found, expected = (open_table(str(path)).snapshot() for path in (ours, theirs))
    assert comparable(found.protocol.to_json()) == comparable(expected.protocol.to_json())
    protection = "delta.requireCheckpointProtectionBeforeVersion"
    kept = [
        {k: v for k, v in snapshot.metadata.configuration.items() if k != protection}
        for snapshot in (found, expected)
    ]
    assert kept[0] == kept[1]
    assert (protection in found.metadata.configuration) == (
        protection in expected.metadata.configuration
    )
    assert found.domain_metadata == expected.domain_metadata == {}
    assert found.metadata.schema_string == expected.metadata.schema_string

    spark.forget()
    assert spark.rows(f"SELECT * FROM delta.`{ours}`") == rows
    assert spark.rows(f"SELECT * FROM delta.`{ours}` VERSION AS OF {last}") == rows
    spark.sql(f"INSERT INTO delta.`{ours}` VALUES (100, 'later')")
    spark.checkpoint(ours)
    assert len(spark.rows(f"SELECT * FROM delta.`{ours}`")) == len(rows) + 1


def test_delta_spark_completes_our_unfinished_drop(bench: Bench, tmp_path: Path) -> None:
    spark = bench.spark
    case = Case("deletionVectors", "'delta.enableDeletionVectors' = 'true'", truncate=True)
    path = written(spark, case, tmp_path / "t")
    assert dropped(open_table(str(path)), case).status == "waiting"
    spark.forget()
    spark.sql(f"ALTER TABLE delta.`{path}` DROP FEATURE deletionVectors")
    protocol = open_table(str(path)).snapshot().protocol
    assert "deletionVectors" not in (protocol.writer_features or ())


MAPPED = """
CREATE TABLE {t} (
    id LONG, part STRING, inner STRUCT<x: LONG, y: ARRAY<STRUCT<z: STRING>>>, m MAP<STRING, LONG>)
USING delta {layout} TBLPROPERTIES (
    'delta.columnMapping.mode' = '{mode}', 'delta.enableRowTracking' = 'true',
    'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')
"""
LAYOUTS = {"id": "PARTITIONED BY (part)", "name": "CLUSTER BY (id, inner.x)"}
MODES = LAYOUTS if PLAY == "all" else ["name"]


@pytest.mark.conformance("RW-38", "CM-03", "CLU-03", "RT-15", "RT-18", "CDC-04")
@pytest.mark.parametrize("mode", MODES)
def test_delta_spark_finds_each_row_under_logical_names(
    bench: Bench, mode: str, tmp_path: Path
) -> None:
    spark, path = bench.spark, tmp_path / "t"
    table = f"delta.`{path}`"
    spark.sql(MAPPED.format(t=table, layout=LAYOUTS[mode], mode=mode))
    values = "id, if(id % 3 = 0, null, concat('p', id % 3)), "
    values += "named_struct('x', id, 'y', array(named_struct('z', 'v'), null)), map('k', id)"
    spark.sql(f"INSERT INTO {table} SELECT {values} FROM range(40)")
    for column, name in (("part", "region"), ("inner.x", "depth"), ("m", "pairs")):
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN {column} TO {name}")
    spark.sql(f"UPDATE {table} SET pairs = map('u', 1) WHERE id = 5")
    spark.sql(f"DELETE FROM {table} WHERE id IN (7, 8)")
    query = f"SELECT *, _metadata.row_id, _metadata.row_commit_version FROM {table}"
    rows, last = spark.rows(query), open_table(str(path)).latest_version()

    assert dropped(open_table(str(path)), Case("columnMapping")).status == "dropped"

    spark.forget()
    assert spark.rows(query) == rows
    latest = open_table(str(path)).latest_version()
    changes = f"SELECT * FROM table_changes_by_path('{path}', {last + 1}, {latest})"
    assert spark.rows(changes) == []
    assert spark.rows(f"SELECT id FROM {table} WHERE region = 'p1' AND inner.depth < 5") == (
        spark.rows("SELECT * FROM VALUES (1L), (4L) AS t(id)")
    )
    detail = spark.rows(f"DESCRIBE DETAIL {table}")
    assert ("depth" in detail[0]) == (mode == "name") and ("region" in detail[0]) == (mode == "id")
    spark.sql(f"OPTIMIZE {table}")
    spark.checkpoint(path)
    spark.forget()
    assert spark.rows(query) == rows


WIDENED = (
    ("BYTE", "SHORT", "1"),
    ("INT", "LONG", "-5"),
    ("SHORT", "DOUBLE", "7"),
    ("FLOAT", "DOUBLE", "0.5"),
    ("DATE", "TIMESTAMP_NTZ", "'2024-02-29'"),
    ("BYTE", "DECIMAL(10,0)", "-128"),
    ("INT", "DECIMAL(12,2)", "2147483647"),
    ("LONG", "DECIMAL(25,4)", "9223372036854775807"),
    ("DECIMAL(3,1)", "DECIMAL(38,10)", "-99.9"),
)


@pytest.mark.conformance("FEAT-14", "TW-02", "TW-05")
def test_delta_spark_reads_widened_columns_without_the_feature(
    bench: Bench, tmp_path: Path
) -> None:
    spark, path = bench.spark, tmp_path / "t"
    table = f"delta.`{path}`"
    columns = [f"c{at} {before}" for at, (before, _, _) in enumerate(WIDENED)]
    columns += [f"m{at} MAP<STRING, {before}>" for at, (before, _, _) in enumerate(WIDENED)]
    spark.sql(
        f"CREATE TABLE {table} ({', '.join(columns)}, p INT) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true', "
        "'delta.feature.timestampNtz' = 'supported')"
    )
    values = [value for _, _, value in WIDENED]
    values += [f"map('k', {value}, 'n', null)" for value in values]
    spark.sql(f"INSERT INTO {table} VALUES ({', '.join(values)}, 5)")
    for at, (_, after, _) in enumerate(WIDENED):
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN c{at} TYPE {after}")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN m{at}.value TYPE {after}")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN p TYPE DECIMAL(12,2)")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    rows, last = spark.rows(f"SELECT * FROM {table}"), open_table(str(path)).latest_version()

    assert dropped(open_table(str(path)), Case("typeWidening")).status == "dropped"

    spark.forget()
    assert spark.rows(f"SELECT * FROM {table}") == rows
    assert spark.rows(f"SELECT * FROM {table} WHERE p = 5.00 AND c1 < 0") == rows
    assert spark.rows(f"SELECT * FROM {table} VERSION AS OF {last}") == rows
    spark.sql(f"OPTIMIZE {table}")
    require("duckdb", "duckdb_extension_delta")
    with closing(DuckDb()) as database:
        assert database.rows(path).num_rows == len(rows) == 2
