"""Batches of rows as Arrow decodes them, and their division by the size of their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.parquet.decoded_sizes import require_row
from delta_maintenance.table.data.data_file_writer import memory_bytes

BATCH_BYTES = 8 << 20
"""The likely maximum size of a batch in bytes; a single row may be larger."""


def text_sizes(values: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Returns the sizes in bytes of texts, which refer to a dictionary."""
    sizes = pc.fill_null(pc.binary_length(values.dictionary), 0).to_numpy().astype(np.int64)
    positions = pc.fill_null(values.indices, 0).to_numpy()
    return sizes[positions] if len(sizes) else np.zeros(len(values), np.int64)


def expanded(batch: pa.RecordBatch, columns: Collection[int]) -> pa.RecordBatch:
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
        for part in halves(batch.slice(start, end - start)):
            yield part.take(pa.array(np.arange(part.num_rows)))


def only(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Returns these columns in this order. For `a`, pyarrow also reads a column named `a.b`."""
    names = batch.schema.names
    if names == list(columns):
        return batch
    return batch.select([names.index(name) for name in columns if name in names])
