"""Whatever goes wrong inside a rewrite, its outputs are not proved: one fault at a time."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_maintenance.errors import VerificationError
from delta_maintenance.protocol.actions import Metadata, Protocol
from delta_maintenance.protocol.data_files import PARQUET_ID, DataFileLayout, FileNaming
from delta_maintenance.protocol.data_files.ordered_digest import OrderedSum
from delta_maintenance.protocol.data_files.row_digest import RowSums
from delta_maintenance.protocol.statistics import StatisticsColumns
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.data import data_file_reader, data_file_writer, read_back
from delta_maintenance.table.data.bins import Bin, RewriteSpec, RewrittenBin
from delta_maintenance.table.data.data_file_writer import DataFileSpec, DataFileWriter
from delta_maintenance.table.data.rewrite import rewrite_bin
from delta_maintenance.table.parallel import IdleWorkers
from tests.support.rewrites.data_files import (
    ROW_ID,
    ROW_TRACKING,
    ROW_VERSION,
    field,
    parquet,
    put,
    schema_string,
    source,
)

FIELDS = (
    field("a", "long"),
    field("b", "long"),
    field("t", "timestamp"),
    field("d", "decimal(12,4)"),
    field("f", "double"),
    field("s", "string"),
    field("n", {"type": "struct", "fields": [field("x", "long")]}),
)
INSTANT = datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=UTC)


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {
            "a": pa.array(numbers, pa.int64()),
            "b": pa.array([n * 7 for n in numbers], pa.int64()),
            "t": pa.array([INSTANT] * count, pa.timestamp("us", "UTC")),
            "d": pa.array([Decimal(n) / 8 for n in numbers], pa.decimal128(12, 4)),
            "f": pa.array([-0.0 if n % 2 else 0.0 for n in numbers]),
            "s": pa.array([f"text {n}" for n in numbers]),
            "n": pa.array(
                [None if n % 3 == 0 else {"x": None} for n in numbers],
                pa.struct([("x", pa.int64())]),
            ),
        }
    )


def run(
    *,
    group_rows: int = 8,
    proof: Any = "rows",
    idle_workers: IdleWorkers | None = None,
    store: MemoryStore | None = None,
    deletes: bool = True,
) -> RewrittenBin:
    """A bin of three files of 20 rows, with row tracking; the middle one has deleted rows, unless
    the bin is to be proved by a digest of the order.
    """
    store = MemoryStore(now_ms=lambda: 0) if store is None else store
    protocol = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=("deletionVectors",),
        writer_features=("deletionVectors", "rowTracking", "domainMetadata"),
    )
    metadata = Metadata(id="t", schema_string=schema_string(*FIELDS), configuration=ROW_TRACKING)
    spec = RewriteSpec(
        files=DataFileSpec(
            layout=DataFileLayout.of(protocol, metadata),
            statistics=StatisticsColumns.of(protocol, metadata, {}),
            group_bytes=group_rows * 90,
        ),
        naming=FileNaming(partition_columns=()),
        target_bytes=1 << 20,
        proof=proof,
    )
    sources = []
    for number in range(3):
        data = parquet(rows(number * 20, 20), row_group_size=5)
        put(store, f"f{number}", data)
        sources.append(
            source(
                f"f{number}",
                data,
                rows=20,
                deleted=[3, 4, 11] if number == 1 and deletes else None,
                base_row_id=number * 20,
                default_row_commit_version=number,
            )
        )
    work = Bin(number=0, sources=tuple(sources), reasons=(("small",),) * 3)
    return rewrite_bin(store, work, spec, new_id=lambda: "0", idle_workers=idle_workers)


def free(count: int) -> IdleWorkers:
    idle_workers = IdleWorkers()
    idle_workers.add(count)
    return idle_workers


def test_without_a_fault_everything_is_proved() -> None:
    done = run()
    assert done.sums.rows == 57 and len(done.outputs) == 1
    assert run(proof="counts").sums.rows == 57
    assert isinstance(done.sums, RowSums)
    in_order = run(deletes=False)
    assert in_order.sums.rows == 60 and isinstance(in_order.sums, OrderedSum)


Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}


def fault(inject: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS[inject.__name__.replace("_", " ")] = inject
    return inject


def on_write(patch: Patch, change: Callable[[int, pa.RecordBatch], pa.RecordBatch | None]) -> None:
    """Changes the batches that come to the writer; the first has the number 0."""
    original, seen = DataFileWriter.write, [0]

    def write(self: DataFileWriter, batch: pa.RecordBatch) -> None:
        changed = change(seen[0], batch)
        seen[0] += 1
        if changed is not None:
            original(self, changed)

    patch.setattr(DataFileWriter, "write", write)


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    return batch.set_column(at, batch.schema.field(at), values.cast(batch.schema.field(at).type))


def on_store(patch: Patch, change: Callable[[bytes], bytes]) -> None:
    """Changes the new file behind the writer's back, after it was written."""
    original = DataFileWriter.result

    def result(self: DataFileWriter) -> Any:
        found = original(self)
        store = self._store
        data = change(store.read(found.name))
        store.delete(found.name)
        put(store, found.name, data)
        return found

    patch.setattr(DataFileWriter, "result", result)


def rewritten(data: bytes, change: Callable[[pa.Table], pa.Table]) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    return parquet(change(table), store_schema=False, store_decimal_as_integer=True)


@fault
def a_batch_is_lost(patch: Patch) -> None:
    on_write(patch, lambda number, batch: None if number == 1 else batch)


@fault
def a_batch_is_there_twice(patch: Patch) -> None:
    on_write(
        patch, lambda number, batch: pa.concat_batches([batch, batch]) if number == 1 else batch
    )


@fault
def a_batch_takes_the_place_of_another(patch: Patch) -> None:
    kept: list[pa.RecordBatch] = []

    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept.append(batch)
        return kept[0] if number == 2 else batch

    on_write(patch, change)


@fault
def deleted_rows_are_revived(patch: Patch) -> None:
    patch.setattr(data_file_reader, "kept_rows", lambda deleted, first, count: None)


@fault
def other_rows_are_deleted(patch: Patch) -> None:
    original = data_file_reader.kept_rows
    patch.setattr(
        data_file_reader,
        "kept_rows",
        lambda deleted, first, count: original(deleted.shift(1), first, count),
    )


@fault
def positions_are_counted_from_each_row_group(patch: Patch) -> None:
    original = data_file_reader.kept_rows
    patch.setattr(
        data_file_reader, "kept_rows", lambda deleted, first, count: original(deleted, 0, count)
    )


@fault
def two_columns_of_a_type_are_swapped(patch: Patch) -> None:
    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_column(with_column(batch, "a", batch["b"]), "b", batch["a"])

    on_write(patch, change)


@fault
def values_move_to_the_next_row(patch: Patch) -> None:
    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_column(batch, "b", pc.take(batch["b"], pa.array(np.roll(range(len(batch)), 1))))

    on_write(patch, change)


@fault
def timestamps_are_cut_to_milliseconds(patch: Patch) -> None:
    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        cut = batch["t"].cast(pa.timestamp("ms", "UTC"), safe=False)
        return with_column(batch, "t", cut)

    on_write(patch, change)


@fault
def timestamps_are_moved_by_a_zone(patch: Patch) -> None:
    on_write(
        patch,
        lambda number, batch: with_column(
            batch,
            "t",
            pc.add(batch["t"].view(pa.int64()), 3_600_000_000).view(pa.timestamp("us", "UTC")),
        ),
    )


@fault
def decimals_are_rounded(patch: Patch) -> None:
    on_write(patch, lambda number, batch: with_column(batch, "d", pc.round(batch["d"], 2)))


@fault
def a_zero_loses_its_sign(patch: Patch) -> None:
    on_write(patch, lambda number, batch: with_column(batch, "f", pc.add(batch["f"], 0.0)))


@fault
def text_is_encoded_anew(patch: Patch) -> None:
    on_write(
        patch,
        lambda number, batch: with_column(batch, "s", pc.utf8_replace_slice(batch["s"], 0, 1, "т")),
    )


@fault
def a_null_struct_becomes_a_struct_of_nulls(patch: Patch) -> None:
    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        child = pc.struct_field(batch["n"], "x")
        return with_column(batch, "n", pa.StructArray.from_arrays([child], names=["x"]))

    on_write(patch, change)


@fault
def a_null_becomes_a_zero(patch: Patch) -> None:
    def change(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        filled = pc.fill_null(batch["n"].field("x"), 0)
        mask = batch["n"].is_null()
        return with_column(batch, "n", pa.StructArray.from_arrays([filled], ["x"], mask=mask))

    on_write(patch, change)


@fault
def row_ids_are_those_of_other_rows(patch: Patch) -> None:
    on_write(
        patch,
        lambda number, batch: with_column(
            batch, ROW_ID, pc.take(batch[ROW_ID], pa.array(range(len(batch) - 1, -1, -1)))
        ),
    )


@fault
def commit_versions_are_lost(patch: Patch) -> None:
    on_write(
        patch,
        lambda number, batch: with_column(batch, ROW_VERSION, pa.nulls(len(batch), pa.int64())),
    )


@fault
def rows_come_from_another_partition(patch: Patch) -> None:
    original = read_back.RowsDigest

    def other(schema: pa.Schema, partition: Any, kind: Any) -> Any:
        return original(schema, {"p": "other"}, kind)

    patch.setattr(read_back, "RowsDigest", other)


@fault
def a_row_group_is_not_written(patch: Patch) -> None:
    original, groups = pq.ParquetWriter.write_table, [0]

    def write_table(self: pq.ParquetWriter, table: pa.Table, **options: Any) -> None:
        groups[0] += 1
        # The first three are those of the sources.
        if groups[0] != 5:
            original(self, table, **options)

    patch.setattr(data_file_writer.pq.ParquetWriter, "write_table", write_table)


@fault
def the_file_is_cut_in_the_store(patch: Patch) -> None:
    on_store(patch, lambda data: data[:-100])


@fault
def the_file_is_replaced_by_one_of_as_many_rows(patch: Patch) -> None:
    on_store(
        patch,
        lambda data: rewritten(
            data, lambda table: table.set_column(0, "a", pa.array(range(table.num_rows, 0, -1)))
        ),
    )


@fault
def one_bit_of_a_value_flips(patch: Patch) -> None:
    def flipped(table: pa.Table) -> pa.Table:
        values = table["b"].to_numpy().copy()
        values[30] ^= 1
        return table.set_column(1, "b", pa.array(values))

    on_store(patch, lambda data: rewritten(data, flipped))


@fault
def two_rows_of_one_column_are_swapped(patch: Patch) -> None:
    def swapped(table: pa.Table) -> pa.Table:
        order = np.arange(table.num_rows)
        order[[5, 6]] = [6, 5]
        return table.set_column(1, "b", table["b"].take(pa.array(order)))

    on_store(patch, lambda data: rewritten(data, swapped))


@fault
def a_column_is_missing(patch: Patch) -> None:
    on_store(patch, lambda data: rewritten(data, lambda table: table.drop_columns(["n"])))


@fault
def a_type_is_narrower(patch: Patch) -> None:
    on_store(
        patch,
        lambda data: rewritten(
            data, lambda table: table.set_column(0, "a", table["a"].cast(pa.int32()))
        ),
    )


OF_DELETED_ROWS = {
    "deleted rows are revived",
    "other rows are deleted",
    "positions are counted from each row group",
}
CASES = [
    (name, deletes)
    for name in sorted(FAULTS)
    for deletes in (True, False)
    if deletes or name not in OF_DELETED_ROWS
]


@pytest.mark.conformance("RW-40", "RW-41", "RT-18")
@pytest.mark.parametrize("idle_workers", [0, 1])
@pytest.mark.parametrize(("name", "deletes"), CASES)
def test_the_fault_is_found_before_anything_is_committed(
    name: str, idle_workers: int, deletes: bool, monkeypatch: Patch
) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises(VerificationError):
        run(idle_workers=free(idle_workers), deletes=deletes)


def test_a_digest_of_the_order_finds_exchanged_rows(monkeypatch: Patch) -> None:
    def exchanged(table: pa.Table) -> pa.Table:
        order = np.arange(table.num_rows)
        order[[5, 6]] = [6, 5]
        return table.take(pa.array(order))

    on_store(monkeypatch, lambda data: rewritten(data, exchanged))
    run()
    with pytest.raises(VerificationError, match="v2:"):
        run(deletes=False)


def test_counts_alone_find_what_is_lost_or_doubled(monkeypatch: Patch) -> None:
    for name in ("a batch is lost", "deleted rows are revived", "the file is cut in the store"):
        with monkeypatch.context() as patch:
            FAULTS[name](patch)
            with pytest.raises(VerificationError):
                run(proof="counts")


def test_the_two_sides_read_on_their_own(monkeypatch: Patch) -> None:
    """The output is read from the store again, after all of it was written."""
    opened: list[str] = []
    original = MemoryStore.open

    def recording(self: MemoryStore, path: str) -> Any:
        opened.append(path)
        return original(self, path)

    monkeypatch.setattr(MemoryStore, "open", recording)
    done = run()
    assert done.outputs[0].name in opened


def _numbered(name: str, kind: pa.DataType, number: int | None) -> pa.Field:
    return pa.field(name, kind, metadata=None if number is None else {PARQUET_ID: str(number)})


@pytest.mark.conformance("CM-04", "CM-10")
@pytest.mark.parametrize(("found", "wanted"), [(8, 7), (None, 7), (7, None)])
@pytest.mark.parametrize("place", ["column", "field", "element", "value"])
def test_a_column_with_another_field_id_is_not_proved(
    place: str, found: int | None, wanted: int | None
) -> None:
    """Readers of tables with column mapping by ID find the columns of a file by these numbers."""

    def schema(number: int | None) -> pa.Schema:
        field = _numbered(place, pa.int64(), number)
        kind = {
            "field": pa.struct([field]),
            "element": pa.list_(field),
            "value": pa.map_(pa.string(), field),
        }.get(place)
        return pa.schema([field if kind is None else _numbered("outer", kind, 1)])

    read_back.require_schema(schema(wanted), schema(wanted), "f")
    with pytest.raises(VerificationError, match=f"the id .* for the column .*{place}") as caught:
        read_back.require_schema(schema(found), schema(wanted), "f")
    assert caught.value.file == "f"
