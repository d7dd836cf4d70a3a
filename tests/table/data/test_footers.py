"""Rows of data files, read from their footers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import (
    CorruptTableError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.data_files import DataFileLayout
from delta_maintenance.protocol.schema import StructType, parse_schema
from delta_maintenance.storage import MemoryStore
from delta_maintenance.storage.core import Store
from delta_maintenance.storage.local import LocalStore
from delta_maintenance.table.data.footers import count_rows
from tests.support.faults.fault_store import Fault, FaultStore
from tests.support.hostile.encrypted_files import encrypted
from tests.support.rewrites.data_files import field, schema_string
from tests.support.tables.table_builder import parquet_bytes


def data_file(rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(rows)}), sink)
    return bytes(sink.getvalue())


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(str(tmp_path)) if request.param == "local" else MemoryStore()


def test_each_file_is_counted_by_its_own_footer(store: Store) -> None:
    paths = []
    for rows in range(40):
        store.put(f"p=a%20b c/{rows}", data_file(rows))
        paths.append(f"p=a%2520b%20c/{rows}")
    found = count_rows(store, pa.array(paths))
    assert found.counts.to_pylist() == list(range(40)) and found.problems == ()


def test_an_absolute_path_below_the_root_is_the_file_below_the_root(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("a b", data_file(3))
    paths = [f"{tmp_path}/a%20b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b"]
    assert count_rows(store, pa.array(paths)).counts.to_pylist() == [3, 3, 3]


def test_uncountable_files_are_reported_with_a_reason(store: Store) -> None:
    store.put("sound", data_file(2))
    store.put("damaged", data_file(2)[:-3])
    store.put("empty", b"")
    outside = ["/elsewhere/f", "s3://bucket/f", "../f", "file:///elsewhere/f"]
    found = count_rows(store, pa.array(["gone", "sound", "damaged", "empty", *outside]))
    assert found.counts.to_pylist() == [None, 2, *[None] * 6]
    gone, damaged, empty, *rest = found.problems
    assert gone == "gone: the data file is gone"
    assert damaged.startswith("damaged: the data file cannot be read (")
    assert empty.startswith("empty: the data file cannot be read (")
    assert rest == [f"{path}: it is not below the table's root" for path in outside]


def test_an_encrypted_file_is_not_called_damaged(store: Store) -> None:
    rows = pa.table({"a": [1, 2]})
    store.put("footer", encrypted(rows, "a", footer=True))
    store.put("column", encrypted(rows, "a", footer=False))
    store.put("damaged", b"PAR1")
    found = count_rows(store, pa.array(["footer", "column", "damaged"]))
    assert found.counts.to_pylist() == [None, 2, None]
    assert found.problems[0] == "footer: the data file is encrypted"
    assert found.errors == (UnsupportedFeatureError, CorruptTableError)


@pytest.mark.conformance("TW-02")
def test_types_are_compared_for_each_file(store: Store) -> None:
    kinds = [pa.int64(), pa.int32(), pa.int64(), pa.string(), pa.int16(), pa.int64()]
    for at, kind in enumerate(kinds):
        store.put(f"f{at}", parquet_bytes(pa.table({"id": pa.array([1], pa.int8()).cast(kind)})))
    columns = parse_schema(schema_string(field("id", "long")))
    layout = DataFileLayout(columns=columns, partition_columns=StructType(fields=()), mode="none")
    paths = pa.array([f"f{at}" for at in range(len(kinds))])
    found = count_rows(store, paths, layout=layout)
    assert found.counts.to_pylist() == [1, None, 1, None, None, 1]
    assert found.errors == (RefusedError, CorruptTableError, RefusedError)
    widening = replace(layout, widens=True)
    assert count_rows(store, paths, layout=widening).errors == (CorruptTableError,)


def test_a_store_that_fails_is_no_problem_of_the_file() -> None:
    inner = MemoryStore()
    inner.put("f", data_file(1))
    with pytest.raises(StorageError):
        count_rows(FaultStore(inner, at=0, fault=Fault.FAILURE), pa.array(["f"]))
