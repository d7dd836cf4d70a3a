"""Real tables of many writers have the same rows afterwards, read by Polars and by DuckDB.

Both belong to the extra `readers`. `make nightly` plays all tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from delta_maintenance import open_table
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations import optimize, purge
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.optimize import OptimizeOptions
from delta_maintenance.operations.purge import PurgeOptions
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.suite.play import some
from tests.support.tables.corpus_tables import TABLES

Rows = list[tuple[Any, ...]]


def by_polars(path: Path) -> Rows:
    """The rows as Polars reads them with `scan_delta`."""
    import polars

    found: Rows = polars.scan_delta(str(path)).collect().rows()
    return found


def by_duckdb(path: Path) -> Rows:
    """The rows as the extension `delta` of DuckDB reads them."""
    with closing(DuckDb()) as database:
        return [tuple(row.values()) for row in database.rows(path).to_pylist()]


READERS: dict[str, tuple[tuple[str, ...], Callable[[Path], Rows]]] = {
    "Polars": (("polars",), by_polars),
    "DuckDB": (("duckdb", "duckdb_extension_delta"), by_duckdb),
}
DEFECTS = {
    ("Polars", "golden-data-reader-escaped-chars"): "takes partition values from names of folders, "
    "which mean nothing; the column `_2` has none, because names with `_` are hidden"
}


@pytest.mark.conformance("RW-08", "RW-16", "RW-17", "RW-22")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", some(TABLES, 4))
def test_another_reader_finds_the_same_rows(
    corpus: Path, tmp_path: Path, reader: str, name: str, count_cases: Callable[[str, int], None]
) -> None:
    packages, read = READERS[reader]
    require(*packages)
    if (reader, name) in DEFECTS:
        pytest.skip(f"{reader} {DEFECTS[reader, name]}")
    if not (corpus / name / "_delta_log").is_dir():
        pytest.skip("no log at all")
    path = tmp_path / "table"
    shutil.copytree(corpus / name, path, copy_function=shutil.copyfile)
    try:
        before = sorted(map(repr, read(path)))
    except BaseException as error:  # Polars panics with a class of its own.
        if isinstance(error, KeyboardInterrupt):
            raise
        pytest.skip(f"not read by {reader}: {' '.join(str(error).split())[:200]}")
    table = open_table(str(path))
    options = OptimizeOptions(full=True, int96=True, other_codecs=True, workers=1)
    try:
        planned = optimize.plan(table.snapshot(), options, context=RunContext.at(datetime.now(UTC)))
    except DeltaMaintenanceError as error:
        pytest.skip(f"not rewritten: {error.problem}")
    result = optimize.apply(table, planned)
    assert sorted(map(repr, read(path))) == before
    deleted = purge.plan(
        table.snapshot(), PurgeOptions(workers=1), context=RunContext.at(datetime.now(UTC))
    )
    purged = purge.apply(table, deleted)
    assert sorted(map(repr, read(path))) == before
    if before and "rewritten" in (result.status, purged.status):
        count_cases(f"real tables rewritten and read by {reader}", 1)


@pytest.mark.conformance("RW-08")
@pytest.mark.parametrize("reader", READERS)
def test_another_reader_finds_the_rows_of_a_rewritten_table(tmp_path: Path, reader: str) -> None:
    packages, read = READERS[reader]
    require(*packages)
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"number": [number, None]}), mode="append")
    before = sorted(map(repr, read(tmp_path)))
    table = open_table(str(tmp_path))
    planned = optimize.plan(
        table.snapshot(), OptimizeOptions(workers=1), context=RunContext.at(datetime.now(UTC))
    )
    assert optimize.apply(table, planned).files_after == 1
    assert sorted(map(repr, read(tmp_path))) == before
    assert len(before) == 6
