"""Rows in scratch files, one file for each range of keys.

Rows have a column of keys at the end, in addition to those of the data files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.protocol.layout.ranks import Ranks
from delta_maintenance.scratch import scratch_writes

KEY = "\0key"
"""The name of the column of keys. No column of a table can have it."""
MOST_FILES = 256
"""The number of files that are open at once."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def keys_of(rows: pa.RecordBatch) -> Ranks:
    """Returns the keys of rows."""
    row_keys: Ranks = rows.column(rows.num_columns - 1).to_numpy()
    return row_keys


class RangeFile:
    """A file of rows. Rows are read in the order in which they were written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._sink: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None
        self.bytes = 0
        """The size of the rows in memory."""
        self.rows = 0
        self.least: int | None = None
        """The least key."""
        self.greatest: int | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Appends rows. `StorageError` if the temporary directory is full."""
        with scratch_writes(self._path):
            if self._writer is None:
                self._sink = pa.OSFile(str(self._path), "wb")
                self._writer = pa.ipc.new_stream(self._sink, self._schema, options=_OPTIONS)
            self._writer.write_batch(rows)
        self.bytes += rows.nbytes
        self.rows += rows.num_rows
        keys = keys_of(rows)
        lowest, greatest = int(keys.min()), int(keys.max())
        self.least = lowest if self.least is None else min(self.least, lowest)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows. Nothing can be written afterwards."""
        self.close()
        if self.rows:
            with pa.OSFile(str(self._path), "rb") as source:
                yield from pa.ipc.open_stream(source)

    def close(self) -> None:
        """Closes the file for writing."""
        if self._writer is not None and self._sink is not None:
            with scratch_writes(self._path):
                self._writer.close()
                self._sink.close()
            self._writer = self._sink = None

    def discard(self) -> None:
        """Deletes the file, so that the disk holds no more rows than necessary."""
        self.close()
        self._path.unlink(missing_ok=True)


class RangeFiles:
    """Divides rows between files by their keys.

    The range of a file begins with one of the keys in `cuts`, which are ascending; the first range
    has no beginning.
    """

    def __init__(self, folder: Path, schema: pa.Schema, cuts: Ranks, *, buffer_bytes: int) -> None:
        """`buffer_bytes` is the size of the rows that are held before they are written."""
        self._cuts = cuts
        self._buffer_bytes = buffer_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        folder.mkdir()
        self.files = [
            RangeFile(folder / f"{number}.arrow", schema) for number in range(len(cuts) + 1)
        ]

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows with their keys."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes all rows that are held."""
        if not self._held:
            return
        rows = pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        ranges = np.searchsorted(self._cuts, keys_of(rows), side="right")
        order = np.argsort(ranges, kind="stable")
        rows = rows.take(pa.array(order))
        starts = np.searchsorted(ranges[order], np.arange(len(self.files) + 1))
        for number in np.flatnonzero(np.diff(starts)).tolist():
            start, end = int(starts[number]), int(starts[number + 1])
            self.files[number].write(rows.slice(start, end - start))

    def close(self) -> None:
        """Writes all rows, and closes the files."""
        self.flush()
        for file in self.files:
            file.close()


def cuts_between(keys: Ranks, ranges: int) -> Ranks:
    """Returns the cuts that divide the rows of a sample into this number of about equal ranges.

    A key with many rows gets a range of its own, so there can be fewer or a few more ranges.
    """
    if not len(keys) or ranges < 2:
        return np.zeros(0, np.uint64)
    ordered = np.sort(keys)
    at = np.arange(1, ranges, dtype=np.int64) * len(ordered) // ranges
    cuts, counts = np.unique(ordered[at], return_counts=True)
    after: npt.NDArray[np.uint64] = cuts[counts > 1]
    after = after[after < np.iinfo(np.uint64).max] + np.uint64(1)
    return np.unique(np.concatenate([cuts, after]))
