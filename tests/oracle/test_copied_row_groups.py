"""Delta Spark and `deltalake` read files with copied row groups as they read the sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from delta_maintenance import clock
from delta_maintenance.operations import optimize
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.read import Table
from tests.support.oracle.delta_spark import DeltaSpark
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.oracle.recordings import RecordedSpark
from tests.support.rewrites.other_writers import NESTED, add_file, groups_of, nested, optimized
from tests.support.rewrites.table_rows import live_adds

pytestmark = [pytest.mark.oracle, pytest.mark.spark, pytest.mark.recorded]

ROWS = """
    SELECT id, if(id % 7 = 0, null, concat('text ', id % 50)) AS text,
        named_struct('a', int(id)) AS box,
        map('k', id, 'l', if(id % 3 = 0, null, id)) AS pairs, map('k', int(id)) AS whole,
        array(array(id, null), null) AS nested, array(array(int(id))) AS full,
        cast(id AS DECIMAL(20, 2)) AS price, id / 7.0D AS ratio,
        if(id = 1234, {odd}, if(id % 2 = 0, 0.0F, -0.0F)) AS odd,
        timestamp_micros(id * 1000003) AS at, date_from_unix_date(int(id)) AS day
    FROM range({first}, {last}, 1, 1)
"""
"""Values of most types; some are null. Delta Spark declares the values of `whole` and the numbers
of `full` as required.
"""
FILTERS = (
    "id = 1234",
    "text = 'text 3' AND id > 500",
    "box.a > 2900",
    "price < 17",
    "text IS NULL",
    "ratio > 400",
    "odd > 4",
    "at = timestamp_micros(1234 * 1000003L)",
)


TRACKED = {"delta.enableRowTracking": "true"}
CASES: Mapping[str, tuple[Mapping[str, str], list[int]]] = {
    "plain": ({}, [1000] * 3),
    "not a number": ({}, [1000] * 3),
    "old timestamps": ({}, [1000] * 3),
    "mapped": ({"delta.columnMapping.mode": "name"}, [1000] * 3),
    "tracked": (TRACKED, [1000] * 3),
    "updated": (TRACKED, [2000, 1000, 100]),
    "deleted": (TRACKED | {"delta.enableDeletionVectors": "true"}, [1000, 998, 1000]),
}
"""Properties of tables, and the rows of the row groups afterwards. The file of an update contains
some row IDs and allows nulls inside of arrays, so that the others are decoded. Of a file with
deleted rows, the only row group is decoded.
"""


@pytest.mark.conformance("RW-25", "RT-15", "RT-16")
@pytest.mark.parametrize("case", CASES)
def test_copied_row_groups_are_read_as_before(
    recorded_spark: RecordedSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    properties, groups = CASES[case]
    path = tmp_path / "table"
    odd = "float('nan')" if case == "not a number" else "5.0F"
    # INT96 is the default of Delta Spark.
    kind = "INT96" if case == "old timestamps" else "TIMESTAMP_MICROS"
    with recorded_spark.setting("spark.sql.parquet.outputTimestampType", kind):
        for first in range(0, 3000, 1000):
            rows = ROWS.format(first=first, last=first + 1000, odd=odd)
            if case == "deleted":
                # Encoded elements and values are never required.
                rows = rows.replace("int(id)) AS whole", "element_at(array(1, null), 2)) AS whole")
                rows = rows.replace("array(int(id))", "array(int(id), null)")
            recorded_spark.write(path, rows, **properties)
        if case == "deleted":
            recorded_spark.rows(f"DELETE FROM delta.`{path}` WHERE id IN (1001, 1500)")
        if case == "updated":
            changed = "text = 'changed' WHERE id BETWEEN 40 AND 60"
            recorded_spark.rows(f"UPDATE delta.`{path}` SET {changed}")
            recorded_spark.write(path, ROWS.format(first=3000, last=3100, odd=odd), **properties)
    ids = ", _metadata.row_id, _metadata.row_commit_version"
    columns = f"*{ids}" if "delta.enableRowTracking" in properties else "*"
    last = 3099 if case == "updated" else 2999

    def answers() -> list[list[str]]:
        # With filters, Spark reads by the page indexes that were moved along.
        conditions = ("true", *FILTERS)
        return [
            recorded_spark.rows(f"SELECT {columns} FROM delta.`{path}` WHERE {e}")
            for e in conditions
        ]

    before, elsewhere = answers(), readable(path)
    assert len(before[0]) == sum(groups) and all(before)
    table = Table(LocalStore(str(path)))
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(clock.now())
    )
    result = optimize.apply(table, planned)
    assert (result.files_before >= 3, result.files_after) == (True, 1), result.problem
    assert all(each.copied for each in result.bins)
    fields = json.loads(table.snapshot().metadata.schema_string)["fields"]
    logical = {
        each["metadata"].get("delta.columnMapping.physicalName", each["name"]): each["name"]
        for each in fields
    }
    [(name, add)] = live_adds(table.store).items()
    found = pq.read_metadata(path / name)
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == groups
    stats = json.loads(add["stats"])
    # Readers disagree about maxima beside NaN, and about files that lack one of several.
    assert ("maxValues" in stats) == (case != "not a number")
    least, greatest = (
        {logical[name]: value for name, value in stats.get(kind, {}).items()}
        for kind in ("minValues", "maxValues")
    )
    assert (least["ratio"], least["at"]) == (0.0, moment(0))
    if greatest:
        assert (greatest["ratio"], greatest["at"], greatest["odd"]) == (last / 7, moment(last), 5)
    types = {found.schema.column(at).physical_type for at in range(len(found.schema))}
    assert ("INT96" in types) == (kind == "INT96")
    recorded_spark.forget()
    assert answers() == before
    assert readable(path) == elsewhere
    assert elsewhere is not None or case in ("mapped", "deleted")


def moment(number: int) -> str:
    """The value of `at` in statistics; as text in milliseconds."""
    microseconds = number * 1_000_003
    found = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{microseconds // 1000 % 1000:03}Z"


def readable(path: Path) -> list[str] | None:
    """The rows as `deltalake` reads them; None if it does not read the table."""
    try:
        rows = DeltaTable(str(path)).to_pyarrow_table()
    except DeltaError:
        return None
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.conformance("RW-25")
@pytest.mark.parametrize("largest", ["Delta Spark", "others"])
def test_nested_columns_of_three_writers_are_read_as_before(
    delta_spark: DeltaSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: str
) -> None:
    """Files of Delta Spark name a calendar, and share no new file with those of others."""
    require("duckdb", "duckdb_extension_delta")
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 12_000)
    path = tmp_path / "table"
    spark_rows = 4000 if largest == "Delta Spark" else 1500
    for first, last in ((0, 20), (10_000, 10_000 + spark_rows), (100, 120)):
        delta_spark.write(path, NESTED.format(first=first, last=last))
    write_deltalake(path, nested(2000, 1000), mode="append")
    write_deltalake(path, nested(200, 20), mode="append")
    add_file(path, "arrow.parquet", nested(3000, 1000))
    add_file(path, "small.parquet", nested(300, 20))
    with closing(DuckDb()) as duck:

        def answers() -> list[list[str] | None]:
            conditions = ("true", "id IN (10, 310, 2700, 10500)", "box.inner.y > 2900")
            by_spark = [
                delta_spark.rows(f"SELECT * FROM delta.`{path}` WHERE {e}") for e in conditions
            ]
            return [*by_spark, readable(path), sorted(map(repr, duck.rows(path).to_pylist()))]

        before = answers()
        assert [len(rows or ()) for rows in before[:2]] == [spark_rows + 2080, 4]
        [report] = optimized(path).bins
        delta_spark.forget()
        assert report.copied and answers() == before
    copied = [4000] if largest == "Delta Spark" else [1000, 1000]
    [groups] = groups_of(path)
    assert [rows for rows in groups if rows in copied][: len(copied)] == copied
    assert None not in before
