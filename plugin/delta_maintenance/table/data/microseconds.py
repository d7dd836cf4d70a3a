"""Checks that microseconds, the unit of tables, hold the timestamps of a file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import RefusedError


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
        left = micros.view(pa.int64()).fill_null(0).to_numpy() * np.int64(1000)
        right = nanos.view(pa.int64()).fill_null(0).to_numpy()
        return bool(np.array_equal(left[valid], right[valid]))
    if pa.types.is_struct(kind):
        return all(
            _same_instants(micros.field(at), nanos.field(at)) for at in range(kind.num_fields)
        )
    if pa.types.is_map(kind):
        return _same_instants(micros.keys, nanos.keys) and _same_instants(micros.items, nanos.items)
    if pa.types.is_list(kind):
        return _same_instants(micros.values, nanos.values)
    return True
