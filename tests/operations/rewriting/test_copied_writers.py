"""Row groups of `deltalake` and of pyarrow share a new file, beside encoded rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from delta_maintenance.operations.rewriting import contract
from delta_maintenance.storage.local import LocalStore
from tests.support.oracle.other_readers import DuckDb, require
from tests.support.rewrites.other_writers import add_file, groups_of, nested, optimized
from tests.support.rewrites.table_rows import live_adds

LEAST = 12_000
"""The least average size of copied row groups, less than that of 1000 rows here."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with files of both writers, with 1000 or 2000 rows and with 20."""
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", LEAST)
    write_deltalake(tmp_path, nested(0, 20, element="item"))
    for first in (1000, 2000):
        write_deltalake(tmp_path, nested(first, 1000), mode="append")
    [creator] = {
        pq.read_metadata(tmp_path / name).created_by for name in live_adds(LocalStore(tmp_path))
    }
    assert creator.startswith("delta-rs ")
    add_file(tmp_path, "arrow.parquet", nested(3000, 2000), row_group_size=1000)
    add_file(tmp_path, "small.parquet", nested(100, 20))
    return tmp_path


@pytest.mark.conformance("RW-25")
def test_deltalake_reads_the_same_nested_columns(table: Path) -> None:
    def rows() -> list[str]:
        return sorted(map(repr, DeltaTable(table).to_pyarrow_table().to_pylist()))

    before = rows()
    [report] = optimized(table).bins
    assert report.copied and groups_of(table) == [[1000, 1000, 1000, 1000, 40]]
    assert rows() == before and len(before) == 4040


@pytest.mark.conformance("RW-25")
def test_duckdb_reads_the_same_nested_columns(table: Path) -> None:
    require("duckdb", "duckdb_extension_delta")
    with closing(DuckDb()) as duck:
        before = sorted(map(repr, duck.rows(table).to_pylist()))
        optimized(table)
        assert sorted(map(repr, duck.rows(table).to_pylist())) == before


@pytest.mark.conformance("RW-25")
def test_files_of_deltalake_are_copied_beside_encoded_rows_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "COPIED_GROUP_BYTES", LEAST)
    for first, count in ((0, 20), (1000, 1000), (2000, 1000)):
        write_deltalake(tmp_path, nested(first, count), mode="append")
    optimized(tmp_path)
    assert groups_of(tmp_path) == [[1000, 1000, 20]]
