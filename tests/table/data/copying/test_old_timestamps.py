"""Row groups with INT96 timestamps, which Delta Spark writes by default, are copied."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data.bins import RewrittenBin
from delta_maintenance.table.data.parquet.footers import CREATED_BY
from delta_maintenance.table.data.parquet.thrift import BINARY, read_struct, struct_bytes
from delta_maintenance.table.data.parquet_input import ParquetInput
from tests.support.rewrites.data_files import field
from tests.support.rewrites.typed_rows import (
    OPTIONS,
    TYPES,
    groups_of,
    metadata_of,
    rewritten,
    rows,
    spec_of,
)

NAMES = list(TYPES)


def old_timestamps(table: pa.Table, version: str = "4.2.0") -> bytes:
    """A file as Delta Spark writes it by default."""
    return written(table, version, int96=True)


def new_timestamps(table: pa.Table) -> bytes:
    """A file as Delta Spark writes it on request."""
    return written(table, "4.2.0", int96=False)


def written(table: pa.Table, version: str, *, int96: bool) -> bytes:
    sink = io.BytesIO()
    options = {name: value for name, value in OPTIONS.items() if name != "row_group_size"}
    with pq.ParquetWriter(
        sink, table.schema, **options, use_deprecated_int96_timestamps=int96
    ) as writer:
        writer.write_table(table, row_group_size=40)
        writer.add_key_value_metadata({"org.apache.spark.version": version})
    return sink.getvalue()


def by_spark(data: bytes) -> bytes:
    """The file with the name of Spark's writer, which some readers expect of INT96 in UTC."""
    size = int.from_bytes(data[-8:-4], "little")
    footer, _ = read_struct(data[-8 - size : -8])
    footer.put(CREATED_BY, BINARY, b"parquet-mr version 1.17.0 (build abc)")
    tail = struct_bytes(footer)
    return data[: -8 - size] + tail + len(tail).to_bytes(4, "little") + b"PAR1"


def physical_types(store: MemoryStore, done: RewrittenBin) -> set[str]:
    found = metadata_of(store, done).schema
    return {found.column(at).physical_type for at in range(len(found))}


def decoded_rows(data: bytes, schema: pa.Schema) -> str:
    """The rows of a file as text, in which NaN is equal to itself."""
    with ParquetInput(io.BytesIO(data)) as parquet:
        batches = [batch.cast(schema) for batch in parquet.batches(schema.names)]
    return repr(pa.Table.from_batches(batches, schema).to_pylist())


@pytest.mark.conformance("RW-11", "RW-25")
def test_timestamps_of_the_old_type_are_copied_with_exact_bounds() -> None:
    tables = [rows(seed) for seed in range(3)]
    files = {f"f{at}": old_timestamps(table) for at, table in enumerate(tables)}
    store, elsewhere = MemoryStore(), MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied
    assert groups_of(store, done) == [40, 40, 20] * 3
    assert "INT96" in physical_types(store, done)
    decoded = rewritten(elsewhere, files, spec_of(copies=False))
    [output], [expected] = done.outputs, decoded.outputs
    schema = tables[0].schema
    assert decoded_rows(store.read(output.name), schema) == decoded_rows(
        elsewhere.read(expected.name), schema
    )
    assert output.stats == expected.stats


def test_the_two_types_of_timestamps_share_no_file() -> None:
    files = {"f0": old_timestamps(rows(0)), "f1": new_timestamps(rows(1))}
    files["f2"] = new_timestamps(rows(2))
    store = MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied
    # The old ones are decoded, as the smaller part.
    assert groups_of(store, done) == [100, 40, 40, 20, 40, 40, 20]
    assert "INT96" not in physical_types(store, done)


@pytest.mark.parametrize(
    "case", ["beside encoded rows", "two writers", "without zone", "nested", "old calendar"]
)
@pytest.mark.conformance("RW-11", "RW-25")
def test_other_timestamps_of_the_old_type_are_decoded(case: str) -> None:
    table, spec, options = rows(1), spec_of(), {}
    if case == "beside encoded rows":
        options["deleted"] = [3]
    elif case == "without zone":
        spec = spec_of(field("t", "timestamp_ntz"))
        table = table.select(["t"]).cast(pa.schema([("t", pa.timestamp("us"))]))
    elif case == "nested":
        inner = {"type": "struct", "fields": [field("t", "timestamp")]}
        spec = spec_of(field("n", inner))
        table = pa.table({"n": pa.StructArray.from_arrays([table["t"].combine_chunks()], ["t"])})
    version = "3.0.3" if case == "old calendar" else "4.2.0"
    files = {name: old_timestamps(table, version) for name in ("f0", "f1")}
    if case == "two writers":
        files["f0"] = by_spark(files["f0"])
    store = MemoryStore()
    done = rewritten(store, files, spec, **options)
    assert not done.copied
    assert "INT96" not in physical_types(store, done)
    assert "INT64" in physical_types(store, done)
