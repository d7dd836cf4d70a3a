"""Delta Spark and `deltalake` read files with copied row groups as they read the sources."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from delta_spark import DeltaSpark
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rewrites.table_rows import live_adds

from delta_maintenance.operations import optimize
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local.store import LocalStore
from delta_maintenance.table.read.table import Table

pytestmark = [pytest.mark.oracle, pytest.mark.spark]

ROWS = """
    SELECT id, if(id % 7 = 0, null, concat('text ', id % 50)) AS text,
        named_struct('a', int(id)) AS box,
        map('k', id, 'l', if(id % 3 = 0, null, id)) AS pairs, map('k', int(id)) AS whole,
        array(array(id, null), null) AS nested, array(array(int(id))) AS full,
        cast(id AS DECIMAL(20, 2)) AS price, id / 7.0D AS ratio,
        if(id = 1234, float('nan'), if(id % 2 = 0, 0.0F, -0.0F)) AS odd,
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
    "isnan(odd)",
)


@pytest.mark.conformance("RW-25")
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_copied_row_groups_are_read_as_before(
    delta_spark: DeltaSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapping: str
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", 1)
    path = tmp_path / "table"
    # The type that Delta Spark writes by default, INT96, is never copied.
    with delta_spark.setting("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"):
        for first in range(0, 3000, 1000):
            rows = ROWS.format(first=first, last=first + 1000)
            delta_spark.write(path, rows, **{"delta.columnMapping.mode": mapping})

    def answers() -> list[list[str]]:
        # With filters, Spark reads by the page indexes that were moved along.
        conditions = ("true", *FILTERS)
        return [delta_spark.rows(f"SELECT * FROM delta.`{path}` WHERE {e}") for e in conditions]

    before, elsewhere = answers(), readable(path)
    assert len(before[0]) == 3000 and all(before)
    table = Table(LocalStore(str(path)))
    planned = optimize.plan(table.snapshot(), OptimizeOptions(workers=1), now=datetime.now(UTC))
    result = optimize.apply(table, planned)
    assert (result.files_before, result.files_after) == (3, 1), result.problem
    assert all(each.copied for each in result.bins)
    fields = json.loads(table.snapshot().metadata.schema_string)["fields"]
    logical = {
        each["metadata"].get("delta.columnMapping.physicalName", each["name"]): each["name"]
        for each in fields
    }
    [add] = live_adds(table.store).values()
    stats = json.loads(add["stats"])
    least, greatest = (
        {logical[name]: value for name, value in stats[kind].items()}
        for kind in ("minValues", "maxValues")
    )
    assert (least["ratio"], greatest["ratio"]) == (0.0, 2999 / 7)
    # One of the values is NaN.
    assert "odd" not in greatest
    delta_spark.forget()
    assert answers() == before
    assert readable(path) == elsewhere
    assert elsewhere is not None or mapping == "name"


def readable(path: Path) -> list[str] | None:
    """The rows as `deltalake` reads them; None if it does not read the table."""
    try:
        rows = DeltaTable(str(path)).to_pyarrow_table()
    except DeltaError:
        return None
    return sorted(map(repr, rows.to_pylist()))
