"""The deleted rows of data files, read from deletion vectors in the table's store.

A bitmap of a few bytes can stand for billions of rows, so rows are listed for a few rows of a file
at a time.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.parquet.files import FilePart
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_ABSOLUTE,
    DeletionVectorDescriptor,
    FileBytes,
    load,
)
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.protocol.data_files.carry_over import between
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.locations import location_of

WHOLE_FILE = 4 << 20
"""Files of deletion vectors up to this size in bytes are read in one request. Of larger ones, only
the vectors are read.
"""
_REMEDY = "run fsck --deep, which checks all deletion vectors and names the remedy"
_PIECE = 64 << 10
_NONE = np.zeros(0, np.int64)


class VectorFiles:
    """Loads deletion vectors; caches the last small file, which often contains the next vector
    too. Thread-safe.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[str, bytes] | None = None

    def load(self, vector: DeletionVectorDescriptor, location: Callable[[str], str]) -> BitMap64:
        """Raises the errors of `load` in `protocol.actions.deletion_vectors`.

        `location` returns the name in the store of the file with a path.
        """
        with ExitStack() as opened:
            return load(vector, lambda path: self._file(location(path), opened))

    def _file(self, path: str, opened: ExitStack) -> FileBytes:
        open_file = self._last
        if open_file is None or open_file[0] != path:
            head = self._store.read_head(path, WHOLE_FILE + 1)
            if len(head) > WHOLE_FILE:
                file = opened.enter_context(self._store.open(path))
                return FilePart(file, 0, file.seek(0, io.SEEK_END), piece=_PIECE)
            open_file = self._last = path, head
        return open_file[1]


class DeletedRows:
    """Reads which rows of data files are deleted. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = VectorFiles(store)

    def of(self, vector: DeletionVectorDescriptor | None, rows: int) -> BitMap64:
        """Returns the positions of the deleted rows in a data file with `rows` rows.

        `CorruptTableError` if the vector is damaged, contradicts the cardinality in the log, or
        marks a row beyond the end of the file; `RefusedError` if it is too large.
        """
        if vector is None:
            return BitMap64()
        absolute = vector.storage_type == STORED_ABSOLUTE
        location = location_of(self._store, vector.path_or_inline_dv) if absolute else None
        try:
            bitmap = self._files.load(vector, lambda path: location or path)
        except CorruptTableError as error:
            error.remedy = _REMEDY
            raise
        if bitmap and bitmap.max() >= rows:
            problem = f"the deletion vector marks row {bitmap.max()} of {rows}, counted from 0"
            raise CorruptTableError(problem, remedy=_REMEDY)
        return bitmap


def deleted_between(deleted: BitMap64, first_row: int, count: int) -> npt.NDArray[np.int64]:
    """Returns the deleted rows among `count` rows from `first_row` on, counted from `first_row`."""
    if not deleted:
        return _NONE
    return between(deleted, first_row, count).astype(np.int64) - first_row


def kept_rows(deleted: BitMap64, first_row: int, count: int) -> pa.BooleanArray | None:
    """Returns a mask of the live rows among `count` rows from `first_row` on; None if all live."""
    gone = deleted_between(deleted, first_row, count)
    if not len(gone):
        return None
    is_kept = np.ones(count, np.bool_)
    is_kept[gone] = False
    return booleans(is_kept)
