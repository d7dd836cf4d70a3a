"""Sorts the rows of a bin by the curve over its clustering columns, within limited memory.

Rows that fit into the memory are sorted there. Otherwise, the clustering columns of all sources are
read first, and a sample of them divides the keys into ranges. The rows of each range are written to
a scratch file, with a column of keys at the end, which is then read and sorted. A range that proves
too large for the memory is divided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.bounds import radix_order
from delta_maintenance.protocol.statistics.ranks import ColumnRanks, Ranks
from delta_maintenance.protocol.statistics.ranks import Path as ColumnPath
from delta_maintenance.scratch import scratch_folder, scratch_writes
from delta_maintenance.table.data.clustering.keys import (
    Clustering,
    CurveKeys,
    RowSample,
    SourceBoxes,
)

KEY = "\0key"
"""The name of the column of keys. No column of a table can have it."""
_RANGES = 128
"""Rows are divided between up to this many ranges at once, whatever the number of columns."""
_PART_BYTES = 16 << 10
"""Up to more ranges if each of them gets this many bytes of a column at once, on average. Dividing
rows again takes less time than writing smaller parts.
"""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def keys_of(rows: pa.RecordBatch) -> Ranks:
    """Returns the keys of rows."""
    row_keys: Ranks = rows.column(rows.num_columns - 1).to_numpy()
    return row_keys


class RangeFile:
    """A file of rows. Rows are read in the order in which they were written.

    Each write appends a stream of its own and closes the file, so that there can be more ranges
    than a process may have open files.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self.bytes = 0
        """The size of the rows in memory."""
        self.rows = 0
        self.least: int | None = None
        """The least key."""
        self.greatest: int | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Appends rows. `StorageError` if the temporary directory is full."""
        with (
            scratch_writes(self._path),
            pa.OSFile(str(self._path), "ab") as sink,
            pa.ipc.new_stream(sink, self._schema, options=_OPTIONS) as stream,
        ):
            stream.write_batch(rows)
        self.bytes += rows.nbytes
        self.rows += rows.num_rows
        keys = keys_of(rows)
        lowest, greatest = int(keys.min()), int(keys.max())
        self.least = lowest if self.least is None else min(self.least, lowest)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows."""
        if self.rows:
            with pa.OSFile(str(self._path), "rb") as source:
                while source.tell() < source.size():
                    yield from pa.ipc.open_stream(source)

    def discard(self) -> None:
        """Deletes the file, so that the disk holds no more rows than necessary."""
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
        order = radix_order(ranges.astype(np.uint64))
        rows = rows.take(pa.array(order))
        starts = np.searchsorted(ranges[order], np.arange(len(self.files) + 1))
        for number in np.flatnonzero(np.diff(starts)).tolist():
            start, end = int(starts[number]), int(starts[number + 1])
            self.files[number].write(rows.slice(start, end - start))


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


_LEAST_SAMPLE = 1 << 20
"""The size in memory up to which values are sampled even if less is sorted at once."""
_OUTPUT_ROWS = 1 << 16
"""The number of rows that are put into their order at once."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The next rows in the order of the curve."""

    rows: pa.RecordBatch
    by_value: bool
    """Whether rows are in the order of the values of a single column."""


class RowSorter:
    """Takes the rows of all sources, then returns them in order."""

    def __init__(
        self,
        schema: pa.Schema,
        clustering: Clustering,
        sampled: Callable[[], Iterable[pa.RecordBatch]],
    ) -> None:
        """`sampled` reads the columns of `key_columns` of all sources; it is called if the rows do
        not fit into the memory.
        """
        self._clustering = clustering
        self._sampled = sampled
        self._schema = schema.append(pa.field(KEY, pa.uint64()))
        self._held: list[tuple[int, pa.RecordBatch]] = []
        self._held_bytes = self._held_rows = 0
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._ranges: RangeFiles | None = None
        self._splits = 0
        self._keys: CurveKeys | None = None
        """Set when the first rows are sorted."""
        self._lock = Lock()
        self.sources = SourceBoxes()
        self.points: Ranks = np.zeros((0, len(clustering.columns)), np.uint64)
        """The ranks of a sample of all rows."""
        self.rows = 0

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def columns(self) -> Mapping[ColumnPath, ColumnRanks]:
        """The ranks of the clustering columns; empty before the first rows are sorted."""
        return {} if self._keys is None else self._keys.columns

    def add(self, source: int, rows: pa.RecordBatch) -> None:
        """Adds rows of a source, with keys or without. String columns must not be dictionaries."""
        self.rows += rows.num_rows
        if self._ranges is not None:
            self._ranges.add(self.with_keys(source, rows))
            return
        self._held.append((source, rows))
        self._held_bytes += rows.nbytes
        self._held_rows += rows.num_rows
        if self._held_bytes > self._clustering.sort_bytes:
            self._begin_ranges()

    def with_keys(self, source: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Appends the keys to rows of a source, if keys are known and the rows have none.

        Thread-safe, so that the thread that reads the rows can do it before they are added.
        """
        if self._keys is None or not rows.num_rows or rows.num_columns == len(self._schema):
            return rows
        ranks, keys = self._keys.rank(self._clustering.key_columns(rows))
        with self._lock:
            self.sources.add(source, ranks)
        return pa.RecordBatch.from_arrays([*rows.columns, pa.array(keys)], schema=self._schema)

    def read_sorted(self) -> Iterator[SortedRows]:
        """Yields all rows in order."""
        if self._ranges is not None:
            self._ranges.flush()
            for file in self._ranges.files:
                yield from self._of_file(file)
            return
        sample = self._learn(self._clustering.key_columns(rows) for _, rows in self._held)
        if sample is None:
            return
        rows = [self.with_keys(source, rows) for source, rows in self._held]
        self._held = []
        yield from self._in_memory(rows)

    def _begin_ranges(self) -> None:
        """Divides the keys into ranges, and writes the rows that are held to their files."""
        sample = self._sample()
        for batch in self._sampled():
            sample.offer(self._clustering.key_columns(batch))
        sampled_rows = sample.rows()
        assert sampled_rows is not None
        keys = self._learn_from(sampled_rows)
        size = sample.count * self._held_bytes // max(1, self._held_rows)
        self._folder = self._stack.enter_context(scratch_folder())
        cuts = cuts_between(keys, self._range_count(size))
        self._ranges = self._range_files(cuts)
        held, self._held, self._held_bytes = self._held, [], 0
        for source, rows in held:
            self._ranges.add(self.with_keys(source, rows))

    def _range_count(self, size: int) -> int:
        """Returns the number of ranges between which rows of this size in memory are divided."""
        sort_bytes = self._clustering.sort_bytes
        most = max(_RANGES, sort_bytes // 2 // (_PART_BYTES * len(self._schema)))
        return min(most, -(-2 * size // sort_bytes))

    def _range_files(self, cuts: Ranks) -> RangeFiles:
        assert self._folder is not None
        self._splits += 1
        folder = self._folder / str(self._splits)
        buffer_bytes = self._clustering.sort_bytes // 2
        return RangeFiles(folder, self._schema, cuts, buffer_bytes=buffer_bytes)

    def _of_file(self, file: RangeFile) -> Iterator[SortedRows]:
        if file.bytes <= self._clustering.sort_bytes:
            if file.rows:
                yield from self._in_memory(list(file.read()))
            file.discard()
        elif file.least == file.greatest:
            # The curve does not order these rows, so they need not be in memory together.
            for rows in file.read():
                yield from self._in_memory([rows], complete=False)
            file.discard()
        else:
            for narrower in self._split(file).files:
                yield from self._of_file(narrower)

    def _split(self, file: RangeFile) -> RangeFiles:
        """Divides a range that is too large to be sorted in memory."""
        sample = self._sample()
        for rows in file.read():
            sample.offer(rows.select([KEY]))
        sampled_rows = sample.rows()
        assert sampled_rows is not None and file.greatest is not None
        cuts = cuts_between(keys_of(sampled_rows), self._range_count(file.bytes))
        # A cut between two keys of the file, so that each part is smaller.
        cuts = np.unique(np.append(cuts, np.uint64(file.greatest)))
        range_files = self._range_files(cuts)
        for rows in file.read():
            range_files.add(rows)
        range_files.flush()
        file.discard()
        return range_files

    def _in_memory(
        self, batches: Sequence[pa.RecordBatch], *, complete: bool = True
    ) -> Iterator[SortedRows]:
        """Sorts rows with keys. `complete` says whether these are all rows of their range."""
        rows = pa.concat_batches(batches)
        single = len(self._clustering.columns) == 1
        if single:
            # Values with the same rank can differ.
            values = self._clustering.key_columns(rows).column(0)
            keyed = {"key": rows.column(rows.num_columns - 1), "value": values}
            if values.null_count:
                keyed = {"key": keyed["key"], "known": pc.is_valid(values), "value": values}
            by = [(name, "ascending") for name in keyed]
            order = pc.sort_indices(pa.table(keyed), by)
        else:
            order = pa.array(radix_order(keys_of(rows)))
        for at in range(0, rows.num_rows, _OUTPUT_ROWS):
            piece = rows.take(order.slice(at, _OUTPUT_ROWS))
            yield SortedRows(_without_key(piece), single and complete)

    def _sample(self) -> RowSample:
        return RowSample(most_bytes=max(_LEAST_SAMPLE, self._clustering.sort_bytes // 4))

    def _learn(self, batches: Iterable[pa.RecordBatch]) -> Ranks | None:
        sample = self._sample()
        for batch in batches:
            sample.offer(batch)
        sampled_rows = sample.rows()
        return None if sampled_rows is None else self._learn_from(sampled_rows)

    def _learn_from(self, sample: pa.RecordBatch) -> Ranks:
        """Determines the ranks of all columns from a sample. Returns the keys of the sample."""
        self._keys = CurveKeys.learn(self._clustering, sample)
        self.points = self._keys.points(sample)
        return self._keys.rank(sample)[1]


def _without_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(range(rows.num_columns - 1))
