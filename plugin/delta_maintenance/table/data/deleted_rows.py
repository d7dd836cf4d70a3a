"""The deleted rows of data files, read from deletion vectors in the table's store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_ABSOLUTE,
    DeletionVectorDescriptor,
    load,
)
from delta_maintenance.protocol.columns.arrays import booleans
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.places import place_of

Positions = npt.NDArray[np.uint64]
"""Physical positions of rows in a data file, counted from 0, ascending."""
_REMEDY = "run fsck --deep, which checks all deletion vectors and names the remedy"
_NONE = np.zeros(0, np.int64)


class DeletedRows:
    """Loads deletion vectors; caches the last file, which often contains the next vector too."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[str, bytes] | None = None

    def of(self, vector: DeletionVectorDescriptor | None, rows: int) -> Positions:
        """Returns the positions of the deleted rows in a data file with `rows` rows.

        `CorruptTableError` if the vector is damaged, contradicts the cardinality in the log, or
        marks a row beyond the end of the file.
        """
        if vector is None:
            return np.empty(0, np.uint64)
        absolute = vector.storage_type == STORED_ABSOLUTE
        place = place_of(self._store, vector.path_or_inline_dv) if absolute else None
        try:
            bitmap = load(vector, lambda path: self._read(place or path))
        except CorruptTableError as error:
            error.remedy = _REMEDY
            raise
        # Checked first: a few bytes of a bitmap can stand for billions of rows.
        if bitmap and bitmap.max() >= rows:
            problem = f"the deletion vector marks row {bitmap.max()} of {rows}, counted from 0"
            raise CorruptTableError(problem, remedy=_REMEDY)
        return np.asarray(bitmap.to_array(), np.uint64)

    def _read(self, path: str) -> bytes:
        if self._last is None or self._last[0] != path:
            self._last = path, self._store.read(path)
        return self._last[1]


def deleted_between(deleted: Positions, first: int, count: int) -> npt.NDArray[np.int64]:
    """Returns the deleted rows among `count` rows from `first` on, counted from `first`."""
    if not len(deleted):
        return _NONE
    start, end = np.searchsorted(deleted, np.array([first, first + count], np.uint64))
    return deleted[start:end].astype(np.int64) - first


def kept_rows(deleted: Positions, first: int, count: int) -> pa.BooleanArray | None:
    """Returns a mask of the live rows among `count` rows from `first` on; None if all are live."""
    gone = deleted_between(deleted, first, count)
    if not len(gone):
        return None
    kept = np.ones(count, np.bool_)
    kept[gone] = False
    return booleans(kept)
