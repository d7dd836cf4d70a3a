"""Long lists on their way into a file: whole, new, and outside of the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import RefusedError, StorageError
from delta_maintenance.operations.core.parquet_report import write_batches, write_rows
from delta_maintenance.storage.local import LocalStore

ROWS = pa.table({"path": ["a", "b", "ü"], "size": [1, 2, 3]})


@pytest.fixture
def table(tmp_path: Path) -> LocalStore:
    (tmp_path / "table").mkdir()
    return LocalStore(tmp_path / "table")


def test_batches_become_one_file_in_their_order(tmp_path: Path, table: LocalStore) -> None:
    address = str(tmp_path / "report.parquet")
    write_batches((ROWS.slice(at, 1) for at in range(3)), ROWS.schema, address, table=table)
    assert pq.read_table(address).equals(ROWS)


def test_no_batches_are_an_empty_list_and_not_no_file(tmp_path: Path, table: LocalStore) -> None:
    address = f"file:{tmp_path}/report.parquet"
    write_batches([], ROWS.schema, address, table=table)
    assert pq.read_table(tmp_path / "report.parquet").equals(ROWS.slice(0, 0))


def test_an_aborted_list_leaves_no_file(tmp_path: Path, table: LocalStore) -> None:
    def breaks_off() -> Iterator[pa.Table]:
        yield ROWS
        raise StorageError("the store is down")

    with pytest.raises(StorageError, match="is down"):
        write_batches(breaks_off(), ROWS.schema, str(tmp_path / "report.parquet"), table=table)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_an_existing_file_is_not_changed(tmp_path: Path, table: LocalStore) -> None:
    (tmp_path / "report.parquet").write_bytes(b"approved")
    with pytest.raises(RefusedError, match="never replaces a file"):
        write_rows(ROWS, str(tmp_path / "report.parquet"), table=table)
    assert (tmp_path / "report.parquet").read_bytes() == b"approved"


@pytest.mark.parametrize("place", ["report.parquet", "deep/below/report.parquet"])
def test_a_place_inside_the_table_is_refused(place: str, table: LocalStore) -> None:
    with pytest.raises(RefusedError, match="inside the table"):
        write_rows(ROWS, f"{table.root}/{place}", table=table)
    assert list(Path(table.root).iterdir()) == []
