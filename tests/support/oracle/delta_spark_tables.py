"""Small tables written by Delta Spark, which together use all features of current logs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.oracle.delta_spark import DeltaSpark

Build = Callable[[DeltaSpark, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The SQL that creates a table, and the queries on it."""

    name: str
    build: Build
    filters: tuple[str, ...] = ()
    """Predicates for which Delta Spark skips at least one data file of the finished table."""
    no_statistics: bool = False
    """Whether checkpoints omit statistics, so that results depend on where readers begin."""
    struct_statistics: bool = False
    """Whether statistics change between text and structs, of which deltalake reads different parts:
    no NaN from structs, and no exponents of decimals and no infinities from text.
    """
    expires: bool = False
    """Whether tombstones and transactions expire as soon as they are written."""
    row_ids: bool = False
    """Whether `_metadata.row_id` can be selected."""
    more: str = "SELECT * FROM {table} LIMIT 1"
    """The rows of a further insert; `{table}` is replaced by the table."""


RECIPES: dict[str, Recipe] = {}


def comparable(name: str, view: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a view on which every reader of the table must agree at any time."""
    if RECIPES[name].expires:
        view = {key: part for key, part in view.items() if key not in ("txns", "tombstones")}
    if RECIPES[name].no_statistics:
        files = {key: {**row, "num_records": None} for key, row in view["files"].items()}
        view = {**view, "files": files}
    return view


def copy(table: Path, to: Path) -> Path:
    """Copies a table with its file times, which time travel depends on."""
    shutil.copytree(table, to, copy_function=shutil.copy2)
    return to


def recipe(
    *filters: str,
    no_statistics: bool = False,
    struct_statistics: bool = False,
    expires: bool = False,
    row_ids: bool = False,
    more: str = "SELECT * FROM {table} LIMIT 1",
) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        RECIPES[build.__name__] = Recipe(
            name=build.__name__,
            build=build,
            filters=filters,
            no_statistics=no_statistics,
            struct_statistics=struct_statistics,
            expires=expires,
            row_ids=row_ids,
            more=more,
        )
        return build

    return register


def create(
    spark: DeltaSpark, path: Path, columns: str, clauses: str = "", **properties: str
) -> None:
    """Creates a table; property names are given without `delta.` and with `_` for `.`."""
    listed = ", ".join(
        f"'delta.{name.replace('_', '.')}' = '{value}'" for name, value in properties.items()
    )
    listed = f"TBLPROPERTIES ({listed})" if listed else ""
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {clauses} {listed}")


def insert(spark: DeltaSpark, path: Path, *rows: str) -> None:
    """Inserts rows given as comma-separated SQL literals."""
    spark.sql(f"INSERT INTO delta.`{path}` VALUES " + ", ".join(f"({row})" for row in rows))


EVERY_TYPE = (
    "id BIGINT, b TINYINT, s SMALLINT, i INT, f FLOAT, d DOUBLE, money DECIMAL(38,18), "
    "small DECIMAL(5,2), t STRING, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, yes BOOLEAN, "
    "bin BINARY, list ARRAY<INT>, kv MAP<STRING, INT>, "
    "deep STRUCT<a: INT, more: STRUCT<x_y: STRING, z: DECIMAL(20,4)>>"
)

ROWS_OF_EVERY_TYPE = (
    "1, -128, -32768, -2147483648, 1.5, 1e300, 12345678901234567890.123456789012345678, -999.99, "
    "'ä \"quoted\" \\\\ text', DATE'0001-01-01', TIMESTAMP'1969-12-31 23:59:59.999999', "
    "TIMESTAMP_NTZ'1582-10-15 00:00:00.000001', true, X'00FF', array(1, null), map('k', 1), "
    "named_struct('a', 1, 'more', named_struct('x_y', 'p', 'z', 1.0001))",
    "9223372036854775807, 127, 32767, 2147483647, float('-infinity'), -0.0, "
    "-0.000000000000000001, 999.99, repeat('long', 30), DATE'9999-12-31', "
    "TIMESTAMP'2262-04-11 23:47:16.854775', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', false, "
    "X'', array(), map(), named_struct('a', null, 'more', named_struct('x_y', null, 'z', -1))",
    "-9223372036854775808, null, null, null, float('NaN'), double('NaN'), null, null, null, null, "
    "null, null, null, null, null, null, null",
    "0, 0, 0, 0, 0.0, 1e-300, 0, 0, '', DATE'1970-01-01', TIMESTAMP'2024-02-29 12:00:00.123', "
    "TIMESTAMP_NTZ'2024-02-29 12:00:00', true, X'61', array(3), map('a', null), "
    "named_struct('a', 5, 'more', null)",
)


def statistics(spark: DeltaSpark, path: Path, as_json: str, as_struct: str) -> None:
    # Every second commit is checkpointed, so one form may be all that remains of the first one.
    create(
        spark,
        path,
        f"{EVERY_TYPE}, part DATE, moment TIMESTAMP",
        "PARTITIONED BY (part, moment)",
        checkpoint_writeStatsAsJson=as_json,
        checkpoint_writeStatsAsStruct=as_struct,
        checkpointInterval="2",
    )
    insert(
        spark, path, f"{ROWS_OF_EVERY_TYPE[0]}, DATE'2024-01-01', TIMESTAMP'2024-01-01 00:00:00'"
    )
    insert(spark, path, f"{ROWS_OF_EVERY_TYPE[1]}, null, TIMESTAMP'2024-01-01 10:20:30.123456'")
    insert(spark, path, *(f"{row}, DATE'1900-01-01', null" for row in ROWS_OF_EVERY_TYPE[2:]))


@recipe("id > 10", "id = 3")
def appends(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, text STRING")
    for number in range(12):
        insert(spark, path, f"{number}, 'row {number}'")


@recipe("id >= 50", "text = 'one'")
def without_a_checkpoint(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, text STRING", checkpointInterval="1000")
    insert(spark, path, "1, 'one'", "2, 'two'")
    insert(spark, path, "50, 'fifty'")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")


@recipe("text = 'a b'", "number IS NULL", "day > DATE'2024-01-01'", "at = TIMESTAMP'2024-01-02'")
def partitioned(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id INT, text STRING, number INT, day DATE, at TIMESTAMP",
        "PARTITIONED BY (text, number, day, at)",
        checkpointInterval="3",
    )
    insert(
        spark,
        path,
        "1, 'a b', 1, DATE'2024-01-01', TIMESTAMP'2024-01-01 01:02:03.456789'",
        "2, 'ü/ö%20=?#&+', -1, DATE'1899-12-31', TIMESTAMP'2024-01-02'",
        "3, null, null, null, null",
        "4, '', 0, DATE'2024-02-29', TIMESTAMP'1960-01-01 00:00:00'",
    )
    insert(spark, path, "5, 'it''s \"so\": {x} [y]|~^', 2147483647, DATE'2024-01-01', null")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    insert(spark, path, "6, 'a b', 1, DATE'2024-01-01', TIMESTAMP'2024-01-01 01:02:03.456789'")
    spark.sql(f"UPDATE delta.`{path}` SET id = 30 WHERE text IS NULL")


@recipe("id > 150")
def deletion_vectors(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id BIGINT, text STRING", enableDeletionVectors="true")
    source = "SELECT id, concat('row ', id) AS text FROM range({}, {}, 1, 2)"
    spark.write(path, source.format(0, 100))
    spark.write(path, source.format(100, 200))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 3 = 0")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 5 = 0 AND id < 60")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'new' WHERE id = 101")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id >= 50 AND id < 100")
    spark.checkpoint(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('delta.enableDeletionVectors')")
    spark.write(path, source.format(200, 202))


@recipe("`the number` > 5", "place = 'there'", "box.`a b` = 'z'")
def column_mapping_by_name(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id INT, place STRING, gone STRING, box STRUCT<in: STRING, n: INT>",
        "PARTITIONED BY (place)",
    )
    insert(spark, path, "1, 'here', 'x', named_struct('in', 'a', 'n', 1)")
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN id TO `the number`")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN box.in TO `a b`")
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN gone")
    insert(spark, path, "7, 'there', named_struct('a b', 'z', 'n', null)")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN `new,{{;=}}` DECIMAL(38,18)")
    insert(spark, path, "9, null, named_struct('a b', 'zz', 'n', 2), 1.5")


@recipe("n.a > 5", "part = 2")
def column_mapping_by_id(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "n STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>, part INT",
        "PARTITIONED BY (part)",
        columnMapping_mode="id",
        checkpointInterval="2",
    )
    insert(spark, path, "named_struct('a', 1, 'b', array(named_struct('c', 'x'))), 1")
    insert(spark, path, "named_struct('a', 9, 'b', null), 2")
    insert(spark, path, "null, 2")


@recipe("id > 10", row_ids=True)
def row_tracking(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id BIGINT, text STRING", enableRowTracking="true")
    insert(spark, path, "1, 'a'", "2, 'b'")
    insert(spark, path, "11, 'c'", "12, 'd'")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'x' WHERE id = 2")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM {{}} s(id, text)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *".format(
            "(VALUES (11, 'merged'), (13, 'new'))"
        )
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")


@recipe("id > 1", row_ids=True)
def row_tracking_backfilled(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id BIGINT", enableDeletionVectors="true")
    insert(spark, path, "1", "2", "3")
    insert(spark, path, "-1")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")


@recipe("id > 1")
def in_commit_timestamps(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT", checkpointInterval="3")
    insert(spark, path, "1")
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')"
    )
    insert(spark, path, "2")
    insert(spark, path, "3")


@recipe("a > 50")
def clustered(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "a INT, b STRING, c INT", "CLUSTER BY (a, b)")
    insert(spark, path, "1, 'x', 0", "2, 'y', 0")
    insert(spark, path, "3, 'z', 0")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"ALTER TABLE delta.`{path}` CLUSTER BY (a)")
    insert(spark, path, "100, 'x', 0")


@recipe("a > 1")
def clustering_given_up(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "a INT, b STRING", "CLUSTER BY (a)", checkpointInterval="2")
    insert(spark, path, "1, 'x'")
    spark.sql(f"ALTER TABLE delta.`{path}` CLUSTER BY NONE")
    insert(spark, path, "2, 'x'")


@recipe("id > 2")
def change_data_feed(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, text STRING", enableChangeDataFeed="true")
    insert(spark, path, "1, 'a'", "2, 'b'")
    insert(spark, path, "3, 'c'")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'x' WHERE id = 1")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")


@recipe("n > 5000000000", "part = 6000000000")
def type_widening(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "n INT, price DECIMAL(6,2), s STRUCT<b: TINYINT>, part INT",
        "PARTITIONED BY (part)",
        enableTypeWidening="true",
    )
    insert(spark, path, "1, 1.25, named_struct('b', 1), 1")
    for change in (
        "n TYPE BIGINT",
        "price TYPE DECIMAL(38,18)",
        "s.b TYPE INT",
        "part TYPE BIGINT",
    ):
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN {change}")
    insert(spark, path, "6000000000, 1.123456789, named_struct('b', 70000), 6000000000")


@recipe("id > 2", "doubled = 2", more="(n) VALUES (7)")
def columns_that_compute(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id BIGINT GENERATED ALWAYS AS IDENTITY, n INT NOT NULL, word STRING DEFAULT 'none', "
        "doubled INT GENERATED ALWAYS AS (n * 2)",
        "PARTITIONED BY (doubled)",
        feature_allowColumnDefaults="supported",
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (n > 0)")
    spark.sql(f"INSERT INTO delta.`{path}` (n) VALUES (1), (2)")
    spark.sql(f"INSERT INTO delta.`{path}` (n, word) VALUES (3, 'three')")


@recipe("id > 6")
def v2_json_checkpoints(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id INT, part STRING",
        "PARTITIONED BY (part)",
        checkpointPolicy="v2",
        checkpointInterval="3",
    )
    for number in range(7):
        insert(spark, path, f"{number}, 'p{number % 2}'", f"{number + 1}, null")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")


@recipe("id > 4")
def v2_parquet_checkpoints(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id INT",
        checkpointPolicy="v2",
        checkpointInterval="2",
        enableDeletionVectors="true",
    )
    with (
        spark.setting("spark.databricks.delta.checkpointV2.topLevelFileFormat", "parquet"),
        spark.setting("spark.databricks.delta.checkpoint.partSize", "2"),
    ):
        for number in range(5):
            insert(spark, path, f"{number}", f"{number + 1}")
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3")
    spark.write(path, "SELECT 99 AS id", txnAppId="app", txnVersion="3")


@recipe("id > 3")
def multi_part_checkpoints(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT", checkpointInterval="4")
    with spark.setting("spark.databricks.delta.checkpoint.partSize", "1"):
        for number in range(5):
            insert(spark, path, f"{number}")


@recipe("id > 5", "part = DATE'2024-01-01'", "money < 0", "deep.a = 5")
def statistics_as_json_and_struct(spark: DeltaSpark, path: Path) -> None:
    statistics(spark, path, "true", "true")


@recipe("id > 5", "part = DATE'2024-01-01'", "moment IS NULL")
def statistics_as_json(spark: DeltaSpark, path: Path) -> None:
    statistics(spark, path, "true", "false")


@recipe(
    "id > 5",
    "part = DATE'2024-01-01'",
    "at > TIMESTAMP'2200-01-01'",
    "t = ''",
    struct_statistics=True,
)
def statistics_as_struct(spark: DeltaSpark, path: Path) -> None:
    statistics(spark, path, "false", "true")


@recipe("part = DATE'2024-01-01'", no_statistics=True)
def statistics_nowhere(spark: DeltaSpark, path: Path) -> None:
    statistics(spark, path, "false", "false")


@recipe("id > 5", "part = DATE'2024-01-01'", "money < 0", struct_statistics=True)
def statistics_turned_from_struct_to_json(spark: DeltaSpark, path: Path) -> None:
    statistics(spark, path, "false", "true")
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ("
        "'delta.checkpoint.writeStatsAsJson' = 'true', "
        "'delta.checkpoint.writeStatsAsStruct' = 'false', 'delta.checkpointInterval' = '100')"
    )


@recipe("id = 2")
def transactions(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT", checkpointInterval="3")
    for app, version, number in (("a", 1, 1), ("b", 7, 2), ("a", 5, 3), ("app 'ä\"", 0, 4)):
        spark.write(path, f"SELECT {number} AS id", txnAppId=app, txnVersion=str(version))


@recipe("id = 2", expires=True)
def short_retention(spark: DeltaSpark, path: Path) -> None:
    create(
        spark,
        path,
        "id INT",
        deletedFileRetentionDuration="interval 0 seconds",
        setTransactionRetentionDuration="interval 0 seconds",
    )
    spark.write(path, "SELECT 1 AS id", txnAppId="a", txnVersion="1")
    insert(spark, path, "2")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    insert(spark, path, "3")


@recipe("id > 7")
def rewritten(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, text STRING", checkpointInterval="5")
    for number in (0, 4):
        insert(spark, path, f"{number}, 'a'", f"{number + 1}, 'b'")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM (VALUES (1, 'm'), (2, 'n')) s(id, text))"
        " s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql(f"OPTIMIZE delta.`{path}` ZORDER BY (id)")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'u' WHERE id = 5")
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 3")
    insert(spark, path, "8, 'c'")


@recipe("other > 1")
def replaced(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, text STRING", enableDeletionVectors="true")
    insert(spark, path, "1, 'a'")
    spark.write(
        path,
        "SELECT * FROM (VALUES (1L, 1), (2L, 2)) s(other, part)",
        mode="overwrite",
        partition_by=("part",),
        overwriteSchema="true",
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN late STRUCT<x: INT, y: STRING>")
    insert(spark, path, "3, 2, named_struct('x', 1, 'y', 'z')")
    spark.sql(f"TRUNCATE TABLE delta.`{path}`")
    insert(spark, path, "1, 1, null")
    insert(spark, path, "2, 2, named_struct('x', 1, 'y', 'z')")


@recipe("id = 1")
def variants(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT, v VARIANT, s STRUCT<v: VARIANT, n: INT>")
    insert(spark, path, "1, parse_json('{\"a\": 1}'), named_struct('v', parse_json('[1]'), 'n', 1)")
    insert(spark, path, "2, null, null")


@recipe(more="VALUES (5)")
def empty(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT")


@recipe(more="VALUES (5)")
def emptied(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT", checkpointInterval="3")
    insert(spark, path, "1")
    spark.sql(f"DELETE FROM delta.`{path}`")


@recipe("id > 1")
def feature_dropped(spark: DeltaSpark, path: Path) -> None:
    create(spark, path, "id INT", enableDeletionVectors="true")
    insert(spark, path, "1", "2")
    insert(spark, path, "0")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    spark.sql(f"ALTER TABLE delta.`{path}` DROP FEATURE deletionVectors")
