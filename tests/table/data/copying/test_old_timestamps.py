"""Row groups with INT96 timestamps, which Delta Spark writes by default, are copied."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rewrites.data_files import field
from rewrites.typed_rows import TYPES, metadata_of, rewritten, rows, spec_of

from delta_maintenance.storage.memory.store import MemoryStore
from delta_maintenance.table.data.parquet_input import ParquetInput

NAMES = list(TYPES)


def old_timestamps(table: pa.Table, version: str = "4.2.0") -> bytes:
    """A file as Delta Spark writes it by default."""
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, store_schema=False, use_deprecated_int96_timestamps=True
    ) as writer:
        writer.write_table(table, row_group_size=40)
        writer.add_key_value_metadata({"org.apache.spark.version": version})
    return sink.getvalue()


@pytest.mark.conformance("RW-11", "RW-25")
def test_timestamps_of_the_old_type_are_copied_with_exact_bounds() -> None:
    tables = [rows(seed) for seed in range(3)]
    files = {f"f{at}": old_timestamps(table) for at, table in enumerate(tables)}
    store = MemoryStore()
    done = rewritten(store, files, spec_of())
    assert done.copied
    place = NAMES.index("t")
    assert metadata_of(store, done).row_group(0).column(place).physical_type == "INT96"
    [output] = done.outputs
    with ParquetInput(io.BytesIO(store.read(output.name))) as parquet:
        batches = [batch.cast(tables[0].schema) for batch in parquet.batches(NAMES)]
    assert repr(pa.Table.from_batches(batches).to_pylist()) == repr(
        pa.concat_tables(tables).to_pylist()
    )
    decoded = rewritten(MemoryStore(), files, spec_of(copies=False))
    assert output.stats == decoded.outputs[0].stats


@pytest.mark.parametrize("case", ["beside encoded rows", "without zone", "nested", "old calendar"])
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
    store = MemoryStore()
    done = rewritten(store, files, spec, **options)
    assert not done.copied
    found = metadata_of(store, done).schema
    physical = {found.column(at).physical_type for at in range(len(found))}
    assert "INT96" not in physical and "INT64" in physical
