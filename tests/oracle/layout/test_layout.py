"""The files that `layout` expects a reader of a condition to read, against what engines read.

Delta Spark counts the files of a scan and their bytes; DuckDB counts the files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from delta_maintenance import DeltaTable, open_table
from delta_maintenance.operations import layout
from delta_maintenance.operations.layout import LayoutOptions
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, duck

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

__all__ = ["duck"]

TOLERANCE = 0.2
ROWS, FILES = 1600, 8
LONG = "lpad(cast({} as string), 12, '0')"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of `FILES` files or more, laid out by `order`."""

    columns: str
    order: str = "id"
    select: str
    """The columns of rows that `range` numbers as `id`."""
    conditions: Sequence[str]
    partition_by: str = ""
    properties: str = ""
    then: Sequence[str] = ()
    """Statements after the rows were written; `{}` is the table."""
    recomputed: bool = False
    """Whether all statistics are then written as by this library."""


TABLES = {
    "integers": Table(
        columns="a BIGINT, b INT, h INT, t TINYINT, s SMALLINT",
        select="id, cast(id / 4 as int), cast(pmod(hash(id), 1000) as int), "
        "cast(id % 100 as tinyint), cast(id / 100 as smallint)",
        conditions=[
            "a = 700",
            "a < 250",
            "a BETWEEN 390 AND 610",
            "a IN (3, 1599)",
            "NOT a < 1200",
            "b > 320 AND h = 5",
            "a = 5 OR b = 390",
            "a <> 5",
            "s >= 12",
            "t = 55",
            "h < 0",
            "650 <= a AND a <= 655",
            "a < 250 AND abs(h) = 3",
            "a < 250 OR abs(h) = 3",
        ],
    ),
    "long strings": Table(
        columns="s STRING, w STRING",
        select=f"concat('https://www.example.org/customers/', {LONG.format('id')}), "
        f"concat('k', {LONG.format('id')})",
        conditions=[
            "s = 'https://www.example.org/customers/000000000700'",
            "s >= 'https://www.example.org/d'",
            "w < 'k000000000300'",
            "w LIKE 'k0000000007%'",
            "w NOT LIKE 'k%'",
            "w IN ('k000000000001', 'k000000001500')",
            "w > 'k0000000013' OR w IS NULL",
        ],
    ),
    "instants": Table(
        columns="t TIMESTAMP, n TIMESTAMP_NTZ, d DATE",
        select="timestamp_micros(1700000000123456 + id * 3600000001), "
        "cast(timestamp_micros(1700000000123456 + id * 3600000001) as timestamp_ntz), "
        "date_add(date'2024-01-01', cast(id / 10 as int))",
        conditions=[
            "t < TIMESTAMP '2023-11-20 00:00:00'",
            "t >= '2024-01-10 00:00:00'",
            "n BETWEEN TIMESTAMP_NTZ '2023-11-20 00:00:00' AND TIMESTAMP_NTZ '2023-11-21 00:00:00'",
            "d = DATE '2024-03-01'",
            "d > '2024-05-01' AND t > TIMESTAMP '2000-01-01 00:00:00'",
            "d = CAST('2024-02-01' AS DATE)",
        ],
    ),
    "decimals": Table(
        columns="p DECIMAL(9,2), q DECIMAL(18,4), w DECIMAL(38,10)",
        select="cast(id / 7 as decimal(9,2)), cast(id * 1000000007 as decimal(18,4)), "
        "cast(id as decimal(38,10)) * 1234567890123456789",
        conditions=[
            "p > 150.5",
            "q <= 250000001750",
            "w >= 1800000000000000000000",
            "p = 100.00",
            "w < 0",
        ],
    ),
    "doubles": Table(
        columns="d DOUBLE, f FLOAT",
        select="if(id % 400 = 399, double('NaN'), id / 3.0), "
        "cast(if(id = 0, '-Infinity', if(id = 900, 'Infinity', id * 0.5)) as float)",
        conditions=["d > 1e9", "d < 60", "d = 200.0", "f > 700", "f < -5", "NOT d > 100"],
    ),
    "single bounds": Table(
        columns="a BIGINT, d DOUBLE, s STRING",
        # Every second file has NaN, and then no maxima of any column.
        select=f"id, if(id % 400 = 399, double('NaN'), id / 3.0), {LONG.format('id')}",
        recomputed=True,
        conditions=[
            *("a = 700", "a = 300", "a <=> 300", "a <> 5", "NOT a = 300", "a IN (300, 310)"),
            *("a < 250", "a <= 300", "a > 1300", "a >= 250", "NOT a < 1200", "NOT a > 300"),
            *("a BETWEEN 390 AND 610", "a >= 390 AND a <= 610", "NOT a BETWEEN 390 AND 610"),
            *("a = 300 OR a = 700", "a IS NULL", "a IS NOT NULL"),
            *("d = 100.0", "d < 60", "d > 100", "d > 1e9", "d IN (20.0, 30.0)"),
            *("s = '000000000300'", "s < '000000000250'", "s > '000000001300'"),
            *("s LIKE '0000000003%'", "NOT s LIKE '0000000003%'", "s IN ('000000000300', '1')"),
        ],
    ),
    "structs": Table(
        columns="s STRUCT<a: BIGINT, b: STRUCT<c: STRING, `d.e`: INT>>",
        select="named_struct('a', id, 'b', named_struct("
        f"'c', {LONG.format('id')}, 'd.e', cast(id / 2 as int)))",
        conditions=[
            "s.a < 300",
            "s.b.c >= '000000001400'",
            "s.b.`d.e` = 100",
            "s.b.c IS NULL",
            "s.a IS NOT NULL AND s.a > 1500",
        ],
    ),
    "partitions": Table(
        columns="a BIGINT, day DATE, country STRING",
        select="id, date_add(date'2024-01-01', cast(id / 400 as int)), "
        "if(id % 3 = 0, null, if(id % 3 = 1, 'DE', 'FR'))",
        partition_by="PARTITIONED BY (day, country)",
        conditions=[
            "day = '2024-01-02'",
            "country = 'DE'",
            "country IS NULL AND a < 500",
            "day > DATE '2024-01-02' OR country = 'FR'",
            "a = 700",
            "country <> 'DE' AND a >= 1000",
        ],
    ),
    "deletion vectors": Table(
        columns="a BIGINT, b INT",
        select="id, cast(if(id % 2 = 0, null, id) as int)",
        properties="'delta.enableDeletionVectors' = 'true'",
        then=["DELETE FROM {} WHERE a % 10 = 3", "DELETE FROM {} WHERE a BETWEEN 200 AND 260"],
        conditions=["a = 230", "a < 210", "b > 1390", "b IS NULL", "a IS NULL", "a >= 1000"],
    ),
    "column mapping": Table(
        columns="a BIGINT, s STRUCT<x: INT>, p STRING",
        select="id, named_struct('x', cast(id as int)), if(id < 700, 'l', 'r')",
        partition_by="PARTITIONED BY (p)",
        properties="'delta.columnMapping.mode' = 'name'",
        then=[
            "ALTER TABLE {} RENAME COLUMN a TO `the a`",
            "ALTER TABLE {} RENAME COLUMN s.x TO y",
            "ALTER TABLE {} RENAME COLUMN p TO part",
        ],
        conditions=["`the a` < 300", "s.y >= 1390", "part = 'l'", "part = 'r' AND s.y < 900"],
    ),
    "nulls": Table(
        columns="a BIGINT, b STRING",
        select="if(id < 400, null, id), if(id % 5 = 0 or id >= 1200, null, 'v')",
        conditions=[
            "a IS NULL",
            "a IS NOT NULL",
            "b IS NULL AND a < 800",
            "b = 'v'",
            "a <=> 900",
            "NOT a = 900",
            "b IS NOT NULL",
            "a = 900 OR b IS NULL",
        ],
    ),
    "columns without statistics": Table(
        columns="a BIGINT, b BIGINT",
        select="id, id",
        properties="'delta.dataSkippingNumIndexedCols' = '1'",
        conditions=["b = 3", "a = 3", "a < 500 AND b > 1400", "a = 3 OR b = 3"],
    ),
    "booleans and binaries": Table(
        columns="a BIGINT, o BOOLEAN, k BINARY",
        select="id, id < 800, cast(cast(id as string) as binary)",
        conditions=["o = true", "k IS NULL", "o IS NULL AND a > 0", "o AND a < 300"],
    ),
    "appended days": Table(
        columns="a BIGINT, ts TIMESTAMP",
        order="id % 8, hash(id)",
        select="pmod(hash(id), 100000), timestamp_seconds(1700000000 + (id % 8) * 86400 + id)",
        conditions=["a < 5000", "ts < '2023-11-16 00:00:00'", "a = 77 AND ts > '2023-11-20'"],
    ),
}


@pytest.fixture(scope="module")
def tables(delta_spark: DeltaSpark, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All tables, as Delta Spark wrote them."""
    folder = tmp_path_factory.mktemp("layout")
    found = {}
    for number, (name, table) in enumerate(TABLES.items()):
        path = folder / f"t{number}"
        properties = f"TBLPROPERTIES ({table.properties})" if table.properties else ""
        place = f"delta.`{path}`"
        delta_spark.sql(
            f"CREATE TABLE {place} ({table.columns}) USING delta {table.partition_by} {properties}"
        )
        delta_spark.sql(
            f"INSERT INTO {place} SELECT /*+ REPARTITION_BY_RANGE({FILES}, place) */ "
            f"{table.select} FROM (SELECT id, {_place(table.order)} AS place FROM range({ROWS}))"
        )
        for statement in table.then:
            delta_spark.sql(statement.format(place))
        if table.recomputed:
            DeltaTable(str(path)).recompute_stats(all_files=True)
        found[name] = path
    return found


def _place(order: str) -> str:
    return f"struct({order})"


def _spark_reads(spark: DeltaSpark, path: Path, condition: str) -> tuple[int, int]:
    """The number of files of a scan, and their bytes, as Spark counts them."""
    with spark.setting("spark.sql.adaptive.enabled", "false"):
        frame = spark.jvm_session().sql(
            f"SELECT count(*), count(struct(*)) FROM delta.`{path}` WHERE {condition}"
        )
        frame.collectAsList()
        leaves = frame.queryExecution().executedPlan().collectLeaves()
    files = size = 0
    for at in range(leaves.size()):
        metrics = leaves.apply(at).metrics()
        if metrics.contains("numFiles"):
            files += metrics.apply("numFiles").value()
            size += metrics.apply("filesSize").value()
    return files, size


CASES = [(name, condition) for name, table in TABLES.items() for condition in table.conditions]


@pytest.mark.parametrize("name", TABLES)
def test_delta_spark_reads_the_expected_bytes(
    name: str, tables: dict[str, Path], delta_spark: DeltaSpark
) -> None:
    path, conditions = tables[name], tuple(TABLES[name].conditions)
    report = layout.plan(open_table(str(path)).snapshot(), LayoutOptions(where=conditions))
    ours = {reading.condition: reading for reading in report.conditions}
    found = {}
    for condition in conditions:
        files, size = _spark_reads(delta_spark, path, condition)
        mine = ours[" ".join(condition.split())]
        tolerance = 0 if TABLES[name].recomputed else TOLERANCE
        if abs(mine.bytes - size) > tolerance * max(size, 1):
            found[condition] = ((mine.files, mine.bytes), (files, size))
    assert found == {}, f"ours, then those of Spark, of {report.files} files"


def test_duckdb_reads_the_expected_files(tables: dict[str, Path], duck: DuckDb) -> None:
    """DuckDB pushes fewer forms of conditions down; for the others, it reads all files."""
    found, compared = {}, 0
    for name, path in tables.items():
        if TABLES[name].recomputed:
            # It also skips files by a single bound, which Delta Spark does not.
            continue
        conditions = tuple(each for each in TABLES[name].conditions if "`d.e`" not in each)
        report = layout.plan(open_table(str(path)).snapshot(), LayoutOptions(where=conditions))
        for reading in report.conditions:
            condition = reading.condition
            files = _duck_reads(duck, path, condition)
            compared += files < report.files
            is_off = abs(reading.files - files) > TOLERANCE * max(files, 1)
            pushed = files < report.files and not any(form in condition for form in NOT_PUSHED)
            if reading.files > files or (is_off and pushed):
                found[name, condition] = (reading.files, files)
    assert found == {}, "ours, then those of DuckDB"
    assert compared > 20


NOT_PUSHED = (" OR ", " IN ", " IS NULL")
"""Forms that DuckDB does not push down, beside others that it does."""
SPELLINGS = {"`": '"', "<=>": "IS NOT DISTINCT FROM", "TIMESTAMP_NTZ": "TIMESTAMP"}


def _duck_reads(duck: DuckDb, path: Path, condition: str) -> int:
    """The number of files of a scan, as DuckDB explains it."""
    spelt = condition
    for ours, theirs in SPELLINGS.items():
        spelt = spelt.replace(ours, theirs)
    plan = duck.explained(f"SELECT * FROM delta_scan('{path}') WHERE {spelt}")
    match = re.search(r"(?:Scanning Files|Total Files Read):\s*(\d+)", plan)
    assert match is not None, plan
    return int(match[1])
