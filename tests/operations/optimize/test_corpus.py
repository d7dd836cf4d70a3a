"""Real tables of many writers have the same rows afterwards, read by delta-rs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions

CORPUS = Path(
    os.environ.get("DELTA_MAINTENANCE_CORPUS", Path(__file__).parents[4] / "shared" / "tables")
)
TABLES = sorted(path.stem for path in (CORPUS / "expected").glob("*.json"))
TARGETS = (None, 20_000, 2_000)
"""Sizes of new files in bytes, which the tables get in turn."""


Reader = Callable[[Path], pa.Table]


def by_query(path: Path) -> pa.Table:
    """The rows as DataFusion reads them in delta-rs, deletion vectors included."""
    query = QueryBuilder().register("t", DeltaTable(str(path)))
    return pa.table(query.execute("SELECT * FROM t").read_all())


def by_dataset(path: Path) -> pa.Table:
    """The rows as pyarrow reads them for delta-rs."""
    return DeltaTable(str(path)).to_pyarrow_table()


def reader_of(path: Path) -> Reader | None:
    """A reader of delta-rs that can read the table; None if there is none."""
    for reader in (by_query, by_dataset):
        # Its errors for unknown features, types and paths are of many classes.
        with suppress(Exception):
            reader(path)
            return reader
    return None


def rows(path: Path, reader: Reader | None) -> list[str]:
    """All rows, sorted."""
    if reader is None:
        return []
    return sorted(str(sorted(row.items())) for row in reader(path).to_pylist())


@pytest.mark.conformance(
    "RW-03", "RW-06", "RW-08", "RW-13", "RW-14", "PART-03", "PART-09", "CONS-04"
)
@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_keeps_its_rows(
    corpus: Path, tmp_path: Path, name: str, count_cases: Callable[[str, int], None]
) -> None:
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    shutil.copytree(corpus / name, tmp_path / "table", copy_function=shutil.copyfile)
    table = open_table(str(tmp_path / "table"))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    target = TARGETS[TABLES.index(name) % len(TARGETS)]
    options = OptimizeOptions(
        full=True, int96=True, other_codecs=True, workers=1, target_bytes=target
    )
    try:
        planned = optimize.plan(table.snapshot(), options, context=RunContext.at(datetime.now(UTC)))
    except DeltaMaintenanceError as error:
        assert error.remedy and len(str(error)) < 1000
        assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
        pytest.skip(f"not rewritten: {error.problem}")
    if planned.is_noop:
        pytest.skip(planned.reason)
    reader = reader_of(tmp_path / "table")
    before = rows(tmp_path / "table", reader)
    result = optimize.apply(table, planned)
    lost = [file for file in result.refused if not file.damaged]
    assert result.status == "rewritten" or result.refused, result.problem
    assert rows(tmp_path / "table", reader) == before
    if not result.refused:
        again = optimize.plan(table.snapshot(), options, context=RunContext.at(datetime.now(UTC)))
        assert again.is_noop, again.reason
    purged = purge.apply(
        table,
        purge.plan(
            table.snapshot(), PurgeOptions(workers=1), context=RunContext.at(datetime.now(UTC))
        ),
    )
    assert purged.status in ("rewritten", "nothing-to-do") or purged.refused, purged.problem
    assert rows(tmp_path / "table", reader) == before
    if before and result.status == "rewritten":
        count_cases("real tables rewritten and read by delta-rs", 1)
    beyond = ("shredded", "below the table's root")
    assert all(any(text in file.problem for text in beyond) for file in lost)
