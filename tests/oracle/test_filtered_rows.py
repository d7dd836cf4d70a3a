"""Engines that skip files, row groups and pages by their bounds find all rows after a rewrite.

Each condition must select the rows that it selects where no filter is pushed down. Engines that
disagree with themselves about signed zeros may find more, or as many as before: a rewrite keeps
copied row groups and other files as they are. Each column is tested in a partition of its own. The
column `tested` has the value of the partition column but is in the data files, so that one query of
Spark pushes a condition on each column down to the row groups of its partition.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from delta_maintenance import clock, open_table
from delta_maintenance.operations import drop_feature, optimize, purge
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.drop_feature import DropFeatureOptions
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.oracle.recordings import RecordedSpark
from tests.support.rewrites.table_rows import latest, live_adds
from tests.support.suite.play import PLAY

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

NINES = "9" * 28 + "." + "9" * 10
COLUMNS: Mapping[str, tuple[str, Sequence[str]]] = {
    "b": ("TINYINT", ["-128", "0", "127"]),
    "h": ("SMALLINT", ["-32768", "0", "32767"]),
    "i": ("INT", ["-2147483648", "0", "2147483647"]),
    "l": ("BIGINT", ["-9223372036854775808", "0", "9223372036854775807"]),
    "f": ("FLOAT", ["-1.5", "5", "NaN"]),
    "d": ("DOUBLE", ["-1.5", "5", "NaN"]),
    "e": ("DOUBLE", ["-Infinity", "NaN", "Infinity"]),
    "z": ("DOUBLE", ["-0.0", "0.0", "0.0"]),
    "p": ("DECIMAL(9,2)", ["-9999999.99", "0.00", "9999999.99"]),
    "q": ("DECIMAL(18,2)", ["-9999999999999999.99", "0.00", "9999999999999999.99"]),
    "w": ("DECIMAL(38,10)", [f"-{NINES}", "0.0000000000", NINES]),
    "s": ("STRING", ["", "ä" * 70, "z" * 33 + "\U0010ffff"]),
    "k": ("BINARY", ["", "7F", "FF80"]),
    "o": ("BOOLEAN", ["false", "true", "true"]),
    "y": ("DATE", ["0001-01-01", "1582-10-04", "9999-12-31"]),
    "t": ("TIMESTAMP", ["0001-01-01 00:00:00", "2024-02-29 12:00:00.1234", "9999-12-31 23:59:59"]),
    "n": (
        "TIMESTAMP_NTZ",
        ["1582-10-04 00:00:00", "1969-12-31 23:59:59.9999", "2262-04-12 00:00:00"],
    ),
    "st.x": ("DOUBLE", ["-1.5", "5", "NaN"]),
}
"""The type of each column, and three of its values from the least to the greatest for Spark. Each
file has two of them, and a null.
"""
ZEROS = ("z",)
SIGNS = {"=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le}


@dataclass(frozen=True)
class Dialect:
    """How an engine spells types and literals."""

    types: Mapping[str, str]
    binary: str = "X'{}'"

    def literal(self, kind: str, value: str) -> str:
        if kind == "BINARY":
            return self.binary.format(value)
        zone = "+00:00" if kind == "TIMESTAMP" else ""
        return f"CAST('{value}{zone}' AS {self.types.get(kind, kind)})"

    def conditions(self, columns: Iterable[str]) -> Iterator[tuple[str, str, str]]:
        """Conditions on columns at the edges of their values: a name, the column, and the text.

        Those with the same name are independent, so one query can have them all.
        """
        for name in columns:
            kind, values = COLUMNS[name]
            low, middle, high = (self.literal(kind, value) for value in values)
            texts = {"null": "IS NULL", "in": f"IN ({low}, {high})", "equal": f"= {low}"}
            texts |= {"above": f"> {middle}", "below": f"< {middle}", "from high": f">= {high}"}
            if PLAY == "all":
                texts |= {f"{each} low": f"{each} {low}" for each in (">", "<", ">=", "<=")}
                texts |= {f"{each} high": f"{each} {high}" for each in ("=", ">", "<", "<=")}
                texts["= middle"] = f"= {middle}"
            for short, text in texts.items():
                yield short, name, f"tested = '{name}' AND {name} {text}"


SPARK = Dialect({})
OTHERS = {"FLOAT": "REAL", "TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}
OTHER, DUCKDB = Dialect(OTHERS), Dialect(OTHERS, "unhex('{}')")


def written(spark: DeltaSpark, path: Path, properties: Mapping[str, str]) -> None:
    """Three files of Spark in each partition, written by three tasks."""
    columns = []
    for name, (kind, values) in COLUMNS.items():
        texts = [SPARK.literal(kind, value) for value in values]
        rows = {3 * at + each: texts[(at + each) % 3] for at in range(3) for each in range(2)}
        value = " ".join(f"WHEN {row} THEN {text}" for row, text in rows.items())
        value = f"CASE id {value} END"
        columns.append(f"named_struct('x', {value}) AS st" if "." in name else f"{value} AS {name}")
    tested = ", ".join(f"'{name}'" for name in COLUMNS)
    rows_of_each = f"explode(array({tested})) AS tested, {', '.join(columns)}"
    query = f"SELECT *, tested AS part FROM (SELECT id, {rows_of_each} FROM range(0, 9, 1, 3))"
    spark.write(path, query, partition_by=["part"], **properties)


def by_arrow(path: Path, **options: Any) -> None:
    """Replaces the files of a table by files of Arrow with the same rows."""
    store, lines = LocalStore(str(path)), [{"commitInfo": {"operation": "WRITE"}}]
    for at, (name, add) in enumerate(live_adds(store).items()):
        lines.append({"remove": {"path": name, "dataChange": True}})
        new = path / f"arrow-{at}.parquet"
        pq.write_table(pq.ParquetFile(path / name).read(), new, store_schema=False, **options)
        stated = {"path": new.name, "size": new.stat().st_size, "stats": '{"numRecords":3}'}
        lines.append({"add": add | stated})
    commit = path / "_delta_log" / f"{latest(store) + 1:020}.json"
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))


Answers = dict[tuple[str, str], int | None]
Ask = Callable[[Path, str], Any]


def spark_answers(
    spark: DeltaSpark, path: Path, columns: Iterable[str], *, filters: bool
) -> Answers:
    conditions = list(SPARK.conditions(columns))
    if filters:
        queries = [
            f"SELECT '{name}' AS name, tested, count(*) AS n FROM delta.`{path}` WHERE "
            + " OR ".join(f"({text})" for other, _, text in conditions if other == name)
            + " GROUP BY tested"
            for name in dict.fromkeys(name for name, _, _ in conditions)
        ]
        rows = map(json.loads, spark.rows(" UNION ALL ".join(queries)))
        found = {(row["name"], row["tested"]): row["n"] for row in rows}
        counts = [found.get((name, column), 0) for name, column, _ in conditions]
    else:
        counted = ", ".join(f"count_if({each[2]}) AS c{at}" for at, each in enumerate(conditions))
        [line] = spark.rows(f"SELECT {counted} FROM delta.`{path}`")
        counts = list(json.loads(line).values())
    return {("Delta Spark", text): n for (_, _, text), n in zip(conditions, counts, strict=True)}


def answers(
    name: str, dialect: Dialect, ask: Ask, path: Path, columns: Iterable[str], *, filters: bool
) -> Answers:
    """The counts of an engine; None for a condition or a table that it does not support."""
    found: Answers = {}
    for _, _, condition in dialect.conditions(columns):
        counted = f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS n FROM t"
        filtered = f"count(*) AS n FROM t WHERE {condition}"
        try:
            found[name, condition] = int(ask(path, f"SELECT {filtered if filters else counted}"))
        except Exception:
            found[name, condition] = None
    return found


def by_polars(path: Path, query: str) -> Any:
    return pl.SQLContext(t=pl.scan_delta(str(path))).execute(query).collect().item()


def by_deltalake(path: Path, query: str) -> Any:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all()
    return pa.table(found)["n"][0].as_py()


def lost_by_arrow(path: Path) -> dict[tuple[str, str, str], tuple[int, int]]:
    """The conditions by which the Arrow data sets of `deltalake` find fewer rows than there are.

    They compare single columns with the values that are in the table.
    """
    table = DeltaTable(path).to_pyarrow_dataset()
    rows, lost = table.to_table(), {}
    for name in COLUMNS:
        own = rows.filter(ds.field("tested") == name)
        field = ds.field(*name.split("."))
        column = own[name] if "." not in name else pc.struct_field(own["st"], "x")
        constants = {repr(value): value for value in column.unique().drop_null()}
        for text, value in constants.items():
            for sign, compare in SIGNS.items():
                condition = (ds.field("tested") == name) & compare(field, value)
                least, count = own.filter(condition).num_rows, table.count_rows(filter=condition)
                if count < least:
                    lost[name, sign, text] = (least, count)
    return lost


def optimized(table: Table) -> Any:
    return optimize.apply(
        table,
        optimize.plan(
            table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(clock.now())
        ),
    )


def purged(table: Table) -> Any:
    return purge.apply(
        table,
        purge.plan(table.snapshot(), PurgeOptions(workers=1), context=RunContext.at(clock.now())),
    )


def without(feature: str) -> Callable[[Table], Any]:
    def dropped(table: Table) -> Any:
        options = DropFeatureOptions(feature=feature)
        return drop_feature.apply(
            table, drop_feature.plan(table.snapshot(), options, context=RunContext.at(clock.now()))
        )

    return dropped


@dataclass(frozen=True)
class Case:
    rewrite: Callable[[Table], Any]
    properties: Mapping[str, str]
    statements: Sequence[str] = ()
    arrow: Mapping[str, Any] | None = None
    """If files of Arrow replace those of Spark, the options that they are written with."""
    copies: bool = False
    timestamps: str = "TIMESTAMP_MICROS"


BOUNDS, NO_BOUNDS = {"write_page_index": True}, {"write_statistics": False}
CASES = {
    "encoded": Case(optimized, {}),
    "encoded from files without bounds": Case(optimized, {}, arrow=NO_BOUNDS),
    "copied": Case(optimized, {}, copies=True, timestamps="INT96"),
    "copied from files of Arrow": Case(optimized, {}, arrow=BOUNDS, copies=True),
    "purged": Case(
        purged, {"delta.enableDeletionVectors": "true"}, ("DELETE FROM {t} WHERE id = 0",)
    ),
    "unmapped": Case(
        without("columnMapping"),
        {"delta.columnMapping.mode": "name"},
        ("ALTER TABLE {t} RENAME COLUMN d TO dd", "ALTER TABLE {t} RENAME COLUMN dd TO d"),
    ),
    "widened": Case(
        without("typeWidening"),
        {"delta.enableTypeWidening": "true"},
        (
            "ALTER TABLE {t} CHANGE COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} CHANGE COLUMN i TYPE BIGINT",
        ),
    ),
}
IN_EVERY_RUN = ("encoded", "copied from files of Arrow")


@pytest.mark.conformance("RW-22", "RW-23", "RW-25")
@pytest.mark.parametrize("name", CASES)
def test_filters_lose_no_rows(
    recorded_spark: RecordedSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if PLAY != "all" and name not in IN_EVERY_RUN:
        pytest.skip("only make nightly plays this rewrite")
    require("duckdb", "duckdb_extension_delta")
    case, path = CASES[name], tmp_path / "table"
    if case.copies:
        monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    with recorded_spark.setting("spark.sql.parquet.outputTimestampType", case.timestamps):
        written(recorded_spark, path, case.properties)
    for statement in case.statements:
        recorded_spark.sql(statement.format(t=f"delta.`{path}`"))
    if case.arrow is not None:
        by_arrow(path, **case.arrow)
    with closing(DuckDb()) as duck:

        def by_duckdb(path: Path, query: str) -> Any:
            return duck.number(query.replace("FROM t", f"FROM delta_scan('{path}')"))

        def everything(columns: Iterable[str] = COLUMNS, *, filters: bool) -> Answers:
            recorded_spark.forget()
            return (
                spark_answers(recorded_spark, path, columns, filters=filters)
                | answers("DuckDB", DUCKDB, by_duckdb, path, columns, filters=filters)
                | answers("Polars", OTHER, by_polars, path, columns, filters=filters)
                | answers("deltalake", OTHER, by_deltalake, path, columns, filters=filters)
            )

        wanted, before = everything(filters=False), everything(ZEROS, filters=True)
        table = open_table(str(path))
        result = case.rewrite(table)
        assert result.status in ("rewritten", "dropped"), result.problem
        if case.copies:
            assert [each.copied for each in result.bins] == [True] * len(COLUMNS)
        found = everything(filters=True)
    lost = {}
    for key, count in wanted.items():
        least = before.get(key, count)
        if count is not None and least is not None:
            least, after = min(count, least), found[key]
            if after is None or after < least:
                lost[key] = (least, after)
    assert not lost
    if case.timestamps != "INT96":
        # Arrow reads INT96 as nanoseconds, which have a smaller range.
        with suppress(DeltaProtocolError):
            assert not lost_by_arrow(path)
