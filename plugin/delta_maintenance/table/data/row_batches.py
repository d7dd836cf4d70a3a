"""Decoded batches of rows: the errors of reading them, their precision, and their sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
)
from delta_maintenance.protocol.schema.types import ColumnMappingMode
from delta_maintenance.table.data.data_file_writer import memory_bytes
from delta_maintenance.table.data.parquet.decoded_sizes import require_row


def require_column_ids(schema: pa.Schema, mode: ColumnMappingMode) -> None:
    """Raises `CorruptTableError` if columns are found by ID and the file contains no IDs."""
    if mode == "id" and not any(b"PARQUET:field_id" in (field.metadata or {}) for field in schema):
        raise CorruptTableError("the data file contains no column IDs, which reading requires")


def reading_error(error: Exception, *, file: str) -> DeltaMaintenanceError:
    """Converts an error of Arrow, or of the file that it reads, to an error about a data file.

    A file that Arrow does not support is not damaged.
    """
    text = " ".join(str(error).split())[:300]
    if isinstance(error, FileNotFoundError):
        remedy = "run fsck, which names each missing file and what to do about its rows"
        return CorruptTableError("the data file is gone", file=file, remedy=remedy)
    problem = f"the data file cannot be read ({text})"
    if "encrypt" in text.lower():
        remedy = "rewrite it with an engine that has its keys"
        return UnsupportedFeatureError("the data file is encrypted", file=file, remedy=remedy)
    # Columns that the table has dropped can be deeper than its schema.
    if isinstance(error, pa.ArrowNotImplementedError) or "too deeply nested" in text:
        remedy = "rewrite the file with the engine that wrote it"
        return UnsupportedFeatureError(problem, file=file, remedy=remedy)
    return CorruptTableError(problem, file=file)


def require_microseconds(batch: pa.RecordBatch, finer: pa.RecordBatch) -> None:
    """Raises `RefusedError` if timestamps lose precision as microseconds.

    `finer` has some columns of the batch with timestamps in nanoseconds.
    """
    for name in finer.schema.names:
        if not _same_instants(batch.column(name), finer.column(name)):
            raise RefusedError(
                f"the column {name} holds timestamps finer than microseconds, which tables do not",
                remedy="rewrite the file with the engine that wrote it",
            )


def _same_instants(micros: pa.Array, nanos: pa.Array) -> bool:
    kind = micros.type
    if pa.types.is_timestamp(kind):
        # Nanoseconds of distant years overflow in the same way on both sides.
        valid = micros.is_valid().to_numpy(zero_copy_only=False)
        scaled = micros.view(pa.int64()).fill_null(0).to_numpy() * np.int64(1000)
        right = nanos.view(pa.int64()).fill_null(0).to_numpy()
        return bool(np.array_equal(scaled[valid], right[valid]))
    if pa.types.is_struct(kind):
        return all(
            _same_instants(micros.field(at), nanos.field(at)) for at in range(kind.num_fields)
        )
    if pa.types.is_map(kind):
        return _same_instants(micros.keys, nanos.keys) and _same_instants(micros.items, nanos.items)
    if pa.types.is_list(kind):
        return _same_instants(micros.values, nanos.values)
    return True


BATCH_BYTES = 8 << 20
"""The likely maximum size of a batch in bytes; a single row may be larger."""


def text_sizes(values: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Returns the sizes in bytes of texts, which refer to a dictionary."""
    sizes = pc.fill_null(pc.binary_length(values.dictionary), 0).to_numpy().astype(np.int64)
    positions = pc.fill_null(values.indices, 0).to_numpy()
    return sizes[positions] if len(sizes) else np.zeros(len(values), np.int64)


def most_expanded(batch: pa.RecordBatch, columns: Collection[int]) -> int:
    """Returns the maximum size in bytes of the texts in these columns, which have dictionaries."""
    longest = sum(
        pc.max(pc.binary_length(batch.column(at).dictionary)).as_py() or 0 for at in columns
    )
    return int(batch.num_rows * longest)


def expand_texts(batch: pa.RecordBatch, columns: Collection[int]) -> pa.RecordBatch:
    """Replaces the dictionaries of these columns by their values."""
    for at in columns:
        values = batch.column(at)
        plain = values.dictionary.take(values.indices)
        batch = batch.set_column(at, batch.schema.field(at).with_type(plain.type), plain)
    return batch


def halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divides a batch until its parts are of a usual size. Only a few rows were larger than others.

    Parts are copies, because they would otherwise keep the batch in memory.
    """
    size, rows = memory_bytes(batch), batch.num_rows
    if size <= 2 * BATCH_BYTES or rows < 2:
        require_row(size if rows == 1 else 0)
        yield batch
        return
    for start, end in ((0, rows // 2), (rows // 2, rows)):
        for half in halves(batch.slice(start, end - start)):
            yield half.take(pa.array(np.arange(half.num_rows)))


def only(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns these columns in this order. For `a`, pyarrow also reads a column named `a.b`."""
    names = batch.schema.names
    if names == list(columns):
        return batch
    return batch.select([names.index(name) for name in columns if name in names])
