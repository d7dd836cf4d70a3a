"""Filters of other readers find all rows after each verb that writes data files or statistics.

The tables are those of `deltalake`, of DuckDB, of Arrow without statistics, and of a writer with
the statistics of Delta Spark; `tests/oracle/test_filtered_rows` asks Delta Spark itself. The Arrow
data sets of `deltalake` skip a file if one column lacks a bound and others have theirs, and believe
every bound. They may find rows with NaN, which Arrow finds by no comparison.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_maintenance import DeltaTable as MaintainedTable
from tests.support.oracle.other_readers import DuckDb, duck
from tests.support.suite.play import examples

__all__ = ["duck"]

Rows = list[dict[str, Any]]
Found = dict[str, list[int]]
"""The IDs of the rows that each filter finds."""

NAN, INF = math.nan, math.inf
OLD, NEW = date(1970, 1, 2), date(2100, 1, 1)
NINES = "9" * 28 + "." + "9" * 10
STRUCT = pa.struct([("x", pa.float64()), ("o", pa.bool_())])


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


TYPES: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "o": (pa.bool_(), [False, True]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "i": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "l": (pa.int64(), [-(2**63), 0, 2**53 + 1, 2**63 - 1]),
    "f": (pa.float32(), [-0.0, 0.0, 1.5, 3.4028234663852886e38, NAN, INF, -INF]),
    "x": (pa.float64(), [-0.0, 0.0, 1.5, 5e-324, 1e308, NAN, INF, -INF]),
    "p": (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.00"), Decimal("1.50")]),
    "w": (pa.decimal128(38, 10), [Decimal("-" + NINES), Decimal("0E-10"), Decimal(NINES)]),
    "s": (pa.string(), ["", "a", "ä" * 70, "z" * 33 + "\U0010ffff", "\U0010ffff" * 40, "é\n\"'"]),
    "k": (pa.binary(), [b"", b"\x7f", b"\xff\x80", b"a" * 70]),
    "y": (pa.date32(), [date(1, 1, 1), date(1582, 10, 4), date(9999, 12, 31)]),
    "t": (
        pa.timestamp("us", "UTC"),
        [
            at(1, 1, 1),
            at(1969, 12, 31, 23, 59, 59, 999_999),
            at(2024, 2, 29, 12, 0, 0, 123_400),
            at(2024, 2, 29, 12, 0, 0, 123_999),
            at(9999, 12, 31, 23, 59, 59, 999_999),
        ],
    ),
    "n": (
        pa.timestamp("us"),
        [
            datetime(1582, 10, 4),
            datetime(1969, 12, 31, 23, 59, 59, 999_999),
            datetime(2024, 2, 29, 12, 0, 0, 123_999),
            datetime(2262, 4, 12),
        ],
    ),
    "st": (STRUCT, [{"x": NAN, "o": True}, {"x": 1.5, "o": None}, {"x": None, "o": False}]),
}
PROPERTIES = (
    {},
    {"delta.dataSkippingNumIndexedCols": "3"},
    {"delta.dataSkippingNumIndexedCols": "0"},
    {"delta.dataSkippingNumIndexedCols": "-1"},
    {"delta.dataSkippingStatsColumns": "id,x,o"},
)
AS_STRUCT = {"delta.checkpoint.writeStatsAsStruct": "true"}
NOT_AS_JSON = AS_STRUCT | {"delta.checkpoint.writeStatsAsJson": "false"}


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


# The writers. Each writes one file for each list of rows.


def by_deltalake(path: Path, files: Sequence[pa.Table], properties: Mapping[str, str]) -> None:
    for number, rows in enumerate(files):
        configuration = dict(properties) if not number else None
        write_deltalake(path, rows, mode="append", configuration=configuration)


def by_duckdb(path: Path, files: Sequence[pa.Table], properties: Mapping[str, str]) -> None:
    """DuckDB appends to tables that exist."""
    write_deltalake(path, files[0].slice(0, 0), configuration=dict(properties))
    with closing(DuckDb()) as database:
        database.execute(f"ATTACH '{path}' AS t (TYPE delta)")
        for rows in files:
            database.insert("t", rows)


def by_arrow(path: Path, files: Sequence[pa.Table], properties: Mapping[str, str]) -> None:
    """Adds files without statistics."""
    write_deltalake(path, files[0].slice(0, 0), configuration=dict(properties))
    log = path / "_delta_log"
    for version, rows in enumerate(files, 1):
        name = f"part-{version}.parquet"
        pq.write_table(rows, path / name, store_schema=False)
        add = {
            "path": name,
            "partitionValues": {},
            "size": (path / name).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
        }
        (log / f"{version:020}.json").write_text(json.dumps({"add": add}))


def like_spark(path: Path, files: Sequence[pa.Table], properties: Mapping[str, str]) -> None:
    """Adds files with the statistics of Delta Spark, which differ for booleans and NaN."""
    by_arrow(path, files, properties)
    MaintainedTable(str(path)).recompute_stats()
    log = path / "_delta_log"
    for version in range(len(files) + 2):
        commit = log / f"{version:020}.json"
        if not commit.exists():
            continue
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for add in (action["add"] for action in actions if "stats" in action.get("add", {})):
            number = int(add["path"].removeprefix("part-").removesuffix(".parquet")) - 1
            stats = json.loads(add["stats"])
            for name, values in stats.get("minValues", {}).items():
                if isinstance(values, bool):
                    continue
                column = files[number][name].to_pylist()
                if any(map(is_nan, column)):
                    stats.setdefault("maxValues", {})[name] = "NaN"
            for part in ("minValues", "maxValues"):
                bounds = stats.get(part, {})
                stats[part] = {k: v for k, v in bounds.items() if not isinstance(v, bool)}
            add["stats"] = json.dumps({k: v for k, v in stats.items() if v})
            add.pop("tags", None)
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


Writer = Callable[[Path, Sequence[pa.Table], Mapping[str, str]], None]
WRITERS: Mapping[str, Writer] = {
    "deltalake": by_deltalake,
    "DuckDB": by_duckdb,
    "no statistics": by_arrow,
    "Delta Spark": like_spark,
}


# The verbs.


def optimize(table: MaintainedTable) -> None:
    assert table.optimize(full=True).status == "rewritten"


def cluster(by: str) -> Callable[[MaintainedTable], None]:
    def sort(table: MaintainedTable) -> None:
        assert table.cluster(by=[by], full=True).status == "rewritten"

    return sort


def expire(table: MaintainedTable) -> None:
    table.expire("day", older_than="400 days", mixed="rewrite")


def recompute_stats(table: MaintainedTable) -> None:
    assert table.recompute_stats(all_files=True).status == "recomputed"
    assert table.recompute_stats().status == "nothing-to-do"


def checkpoint(table: MaintainedTable) -> None:
    table.checkpoint()


def nothing(table: MaintainedTable) -> None:
    pass


VERBS: Mapping[str, Callable[[MaintainedTable], None]] = {
    "optimize": optimize,
    "cluster by id": cluster("id"),
    "cluster by c": cluster("c"),
    "expire": expire,
    "recompute-stats": recompute_stats,
    "checkpoint": nothing,
}
WRITE_ALL = ("optimize", "cluster by id", "cluster by c", "recompute-stats")
"""The verbs after which no statistics of other writers are left."""


# The readers.


def by_arrow_data_sets(path: Path, column: str, values: Sequence[Any], kind: pa.DataType) -> Found:
    table = DeltaTable(path).to_pyarrow_dataset()
    return {
        name: sorted(table.to_table(columns=["id"], filter=condition)["id"].to_pylist())
        for name, condition in conditions(column, values, kind).items()
    }


def conditions(column: str, values: Sequence[Any], kind: pa.DataType) -> dict[str, ds.Expression]:
    of = ds.field(column)
    if pa.types.is_struct(kind):
        x, o = ds.field(column, "x"), ds.field(column, "o")
        return {"x": x < 2.0, "x from": x >= 1.5, "o": o == True, "null": x.is_null()}  # noqa: E712
    found = {"null": of.is_null(), "valid": of.is_valid()}
    for value in values:
        text, constant = repr(value), pa.scalar(value, kind)
        found[f"= {text}"] = of == constant
        # To Arrow, NaN is neither less nor greater than a bound.
        if not (pa.types.is_boolean(kind) or is_nan(value)):
            found[f"< {text}"], found[f"> {text}"] = of < constant, of > constant
            found[f"<= {text}"], found[f">= {text}"] = of <= constant, of >= constant
        found[f"= {text} or id"] = (of == constant) | (ds.field("id") == 1)
    return found


SQL_TYPES = {"f": "REAL", "x": "DOUBLE", "p": "DECIMAL(9,2)", "w": "DECIMAL(38,10)", "y": "DATE"}


def sql_conditions(column: str, values: Sequence[Any], kind: pa.DataType) -> list[str]:
    """A few: `tests/oracle/test_filtered_rows` has all."""
    if pa.types.is_boolean(kind):
        return ["c IS NULL", *(f"c = {value}".lower() for value in values)]
    typed = SQL_TYPES.get(column)
    if pa.types.is_integer(kind):
        constants = [str(value) for value in values]
    elif typed is not None:
        constants = [f"CAST('{value:f}' AS {typed})" if isinstance(value, Decimal)
                     else f"CAST('{value}' AS {typed})" for value in values]  # fmt: skip
    elif pa.types.is_string(kind):
        constants = ["'" + value.replace("'", "''") + "'" for value in values]
    else:
        return ["c IS NULL"]
    signs = ("=", "<", ">", ">=", "<=")
    return [f"c {sign} {constant}" for constant, sign in zip(constants, cycle(signs), strict=False)]


def sql_readers(duck: DuckDb, path: Path) -> Mapping[str, Callable[[str], list[int]]]:
    """Engines that count rows."""

    def deltalake(query: str) -> list[int]:
        found = QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all()
        return [column[0].as_py() for column in pa.table(found).columns]

    def polars(query: str) -> list[int]:
        return list(pl.SQLContext(t=pl.scan_delta(str(path))).execute(query).collect().row(0))

    def duckdb(query: str) -> list[int]:
        return list(duck.execute(query.replace("FROM t", f"FROM delta_scan('{path}')"))[0])

    return {"deltalake": deltalake, "Polars": polars, "DuckDB": duckdb}


def counts(read: Callable[[str], list[int]], wanted: Sequence[str], *, skip: bool) -> list[int]:
    """The number of rows for each condition, with or without filters that can be pushed down."""
    if skip:
        return [read(f"SELECT count(*) AS n FROM t WHERE {each}")[0] for each in wanted]
    sums = (f"sum(CASE WHEN {each} THEN 1 ELSE 0 END) AS n{at}" for at, each in enumerate(wanted))
    return read(f"SELECT {', '.join(sums)} FROM t")


# The property.


def tables(name: str, files: Sequence[Sequence[Any]]) -> list[pa.Table]:
    kind = TYPES[name][0]
    written, number = [], 0
    for values in files:
        ids = range(number, number + len(values))
        number += len(values)
        columns: dict[str, Any] = {
            "id": pa.array(ids, pa.int64()),
            "c": pa.array(values, kind),
            "o": pa.array([bool(each % 3) if each % 4 else None for each in ids], pa.bool_()),
            "x": pa.array([1.0] * len(ids)),
            "day": pa.array([NEW if each % 5 else OLD for each in ids], pa.date32()),
            "last": pa.array([str(each) for each in ids]),
        }
        written.append(pa.table(columns))
    return written


def files_of(name: str) -> st.SearchStrategy[list[list[Any]]]:
    value = st.none() | st.sampled_from(TYPES[name][1])
    return st.lists(st.lists(value, min_size=1, max_size=4), min_size=2, max_size=3)


@pytest.mark.conformance("RW-22", "STAT-03", "STAT-07", "CKPT-10")
@settings(max_examples=examples(20))
@given(name=st.sampled_from(sorted(TYPES)), data=st.data())
def test_filters_find_the_same_rows_after_each_verb(
    duck: DuckDb, name: str, data: st.DataObject
) -> None:
    files = data.draw(files_of(name))
    writer = data.draw(st.sampled_from(sorted(WRITERS)))
    verb = data.draw(st.sampled_from(sorted(VERBS)))
    properties = data.draw(st.sampled_from(PROPERTIES)) | data.draw(
        st.sampled_from([{}, AS_STRUCT, NOT_AS_JSON])
    )
    play(duck, name, files, writer=writer, verb=verb, properties=properties)


@pytest.mark.conformance("RW-22", "STAT-03")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["o", "x"])
def test_filters_on_tables_of_deltalake_find_the_same_rows_after_each_verb(
    duck: DuckDb, name: str, verb: str
) -> None:
    values = [[None, each] for each in TYPES[name][1]]
    play(duck, name, values, writer="deltalake", verb=verb, properties=NOT_AS_JSON)


def test_a_table_keeps_the_maxima_of_other_columns_without_statistics_of_the_one_with_nan(
    tmp_path: Path,
) -> None:
    """What the documentation advises."""
    files = tables("x", [[NAN, 1.5], [3.0, 4.0]])
    by_deltalake(tmp_path, files, {})
    table = MaintainedTable(str(tmp_path))
    assert table.optimize(full=True).status == "rewritten"
    filters = conditions("c", [1.5, 4.0], pa.float64()) | conditions("id", [0, 3], pa.int64())
    before = {name: found(tmp_path, each) for name, each in filters.items()}
    assert "(id <= 3)" not in guarantees(tmp_path)
    wanted = {"delta.dataSkippingStatsColumns": "id,o,x,day"}
    DeltaTable(tmp_path).alter.set_table_properties(wanted)
    assert table.recompute_stats(all_files=True).status == "recomputed"
    assert "(id <= 3)" in guarantees(tmp_path) and "(c " not in guarantees(tmp_path)
    # Without bounds, Arrow finds no NaN.
    after = {name: found(tmp_path, each) for name, each in filters.items()}
    assert {name: rows - {0} for name, rows in before.items()} == {
        name: rows - {0} for name, rows in after.items()
    }
    assert sum(map(len, after.values())) > 9


def found(path: Path, condition: ds.Expression) -> set[int]:
    table = DeltaTable(path).to_pyarrow_dataset().to_table(columns=["id"], filter=condition)
    return set(table["id"].to_pylist())


def guarantees(path: Path) -> str:
    fragments = DeltaTable(path).to_pyarrow_dataset().get_fragments()
    return " ".join(str(fragment.partition_expression) for fragment in fragments)


def play(
    duck: DuckDb,
    name: str,
    files: Sequence[Sequence[Any]],
    *,
    writer: str,
    verb: str,
    properties: Mapping[str, str],
) -> None:
    kind, values = TYPES[name]
    written = tables(name, files)
    rows = pa.concat_tables(written)
    with TemporaryDirectory() as folder:
        path = Path(folder)
        WRITERS[writer](path, written, properties)
        before = by_arrow_data_sets(path, "c", values, kind)
        readers, in_sql = sql_readers(duck, path), sql_conditions(name, values, kind)
        counted = {name: counts(read, in_sql, skip=True) for name, read in readers.items()}
        table = MaintainedTable(str(path))
        if verb.startswith("cluster") and "c" in verb.split()[-1] and not sortable(kind):
            verb = "cluster by id"
        VERBS[verb](table)
        if properties.get("delta.checkpoint.writeStatsAsJson") != "false":
            # Of structs alone, deltalake reads no bounds of booleans and no infinite ones, in its
            # own checkpoints neither.
            table.checkpoint()
        if verb == "expire":
            rows = rows.filter(ds.field("day") >= pa.scalar(NEW))
        live = set(rows["id"].to_pylist())
        has_nan = {row["id"] for row in rows.to_pylist() if is_nan(row["c"])}
        after = by_arrow_data_sets(path, "c", values, kind)
        for text, condition in conditions("c", values, kind).items():
            plain = set(rows.filter(condition)["id"].to_pylist())
            earlier = set(before[text]) & live - has_nan
            wanted = plain if verb in WRITE_ALL else earlier
            assert wanted <= set(after[text]), (text, wanted, after[text])
            assert set(after[text]) <= plain | has_nan | set(before[text]), text
        table.checkpoint()
        for reader, read in readers.items():
            whole = counts(read, in_sql, skip=False)
            found = counts(read, in_sql, skip=True)
            for text, least, earlier, count in zip(
                in_sql, whole, counted[reader], found, strict=True
            ):
                # Other writers may state one sign of zero.
                least = least if verb in WRITE_ALL else min(least, earlier)
                assert count >= least, (reader, text)


def sortable(kind: pa.DataType) -> bool:
    return not (pa.types.is_boolean(kind) or pa.types.is_binary(kind) or pa.types.is_struct(kind))
