"""The deleted rows of data files, read from deletion vectors in the table's store.

A bitmap of a few bytes can stand for billions of rows, so rows are listed for a few rows of a file
at a time.

A rewrite keeps the live rows of a source contiguous and in their order. A row that was deleted from
the source after it was read therefore has a known position in the new file: the offset of the
source's rows plus the number of live rows before it. Physical row positions are counted from 0.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from delta_maintenance.errors import CorruptTableError
from delta_maintenance.protocol.actions.deletion_vectors import (
    STORED_ABSOLUTE,
    DeletionVectorDescriptor,
    FileBytes,
    load,
)
from delta_maintenance.protocol.columns import booleans
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.data.locations import location_of
from delta_maintenance.table.data.parquet.files import FilePart

Positions = npt.NDArray[np.uint64]
"""Physical row positions in a file, counted from 0, ascending."""
_TOGETHER = 1 << 20
"""The number of adjacent rows of which positions are listed at a time; a list takes 8 MiB."""


def positions_of(rows: BitMap64) -> Positions:
    """Returns all positions; they take 8 bytes each."""
    return np.asarray(rows.to_array(), np.uint64)


def between(rows: BitMap64, first_row: int, count: int) -> Positions:
    """Returns the positions among `count` rows from `first_row` on."""
    return positions_of(rows & BitMap64(range(first_row, first_row + count)))


def newly_deleted(read: BitMap64, now: BitMap64) -> BitMap64 | None:
    """Returns the rows of a source that are deleted now and were live when the source was read.

    None if rows that were deleted then are live now, because the new file lacks these rows.
    """
    return now - read if read.issubset(now) else None


def carry_over(rows: BitMap64, *, read: BitMap64, offset: int, live: int) -> BitMap64 | None:
    """Returns the positions of these live rows of a source in the new file.

    `read` are the rows of the source that were deleted when it was read. The new file contains the
    other rows from `offset` on, `live` in number. None if a position would be outside that range,
    which means that the arguments do not describe the source.
    """
    if not rows:
        return BitMap64()
    last_row = rows.max()
    if last_row - read.rank(last_row) >= live:
        return None
    if not read:
        return rows.shift(offset)
    positions = BitMap64()
    for start in _windows(rows):
        window_rows, gone = between(rows, start, _TOGETHER), between(read, start, _TOGETHER)
        before = read.rank(start) - (start in read) + np.searchsorted(gone, window_rows)
        moved = window_rows - before.astype(np.uint64) + np.uint64(offset)
        positions |= BitMap64(array("Q", moved.tobytes()))
    return positions


def all_rows(offset: int, live: int) -> BitMap64:
    """Returns the positions of all rows of a source in the new file."""
    return BitMap64(range(offset, offset + live))


def _windows(rows: BitMap64) -> Iterator[int]:
    """Yields the first of `_TOGETHER` adjacent rows, until all rows are in one of them."""
    start, last_row = rows.min(), rows.max()
    while True:
        yield start
        if start + _TOGETHER > last_row:
            return
        start = rows.next_set_bit(start + _TOGETHER)


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
