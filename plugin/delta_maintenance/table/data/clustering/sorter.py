"""Sorts the rows of a bin by the curve over its clustering columns, within limited memory.

Rows that fit into the memory are sorted there. Otherwise, the clustering columns of all sources are
read first, and a sample of them divides the keys into ranges. The rows of each range are written to
a scratch file, which is then read and sorted. A range that proves too large for the memory is
divided again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.layout.ranks import ColumnRanks, Ranks
from delta_maintenance.protocol.layout.ranks import Path as ColumnPath
from delta_maintenance.scratch import scratch_folder
from delta_maintenance.table.data.clustering.keys import Clustering, CurveKeys, SourceBoxes
from delta_maintenance.table.data.clustering.range_files import (
    KEY,
    MOST_FILES,
    RangeFile,
    RangeFiles,
    cuts_between,
    keys_of,
)
from delta_maintenance.table.data.clustering.sample import RowSample

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
        self.sources = SourceBoxes()
        self.points: Ranks = np.zeros((0, len(clustering.columns)), np.uint64)
        """The ranks of a sample of all rows."""
        self.rows = 0

    def __enter__(self) -> RowSorter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ranges is not None:
            for file in self._ranges.files:
                file.close()
        self._stack.close()

    @property
    def columns(self) -> Mapping[ColumnPath, ColumnRanks]:
        """The ranks of the clustering columns; empty before the first rows are sorted."""
        return {} if self._keys is None else self._keys.columns

    def add(self, source: int, rows: pa.RecordBatch) -> None:
        """Adds rows of a source. String columns must not be dictionaries."""
        self.rows += rows.num_rows
        if self._ranges is not None:
            self._ranges.add(self._keyed(source, rows))
            return
        self._held.append((source, rows))
        self._held_bytes += rows.nbytes
        self._held_rows += rows.num_rows
        if self._held_bytes > self._clustering.sort_bytes:
            self._begin_ranges()

    def sorted(self) -> Iterator[SortedRows]:
        """Yields all rows in order."""
        if self._ranges is not None:
            self._ranges.close()
            for file in self._ranges.files:
                yield from self._of_file(file)
            return
        sample = self._learn(self._clustering.key_columns(rows) for _, rows in self._held)
        if sample is None:
            return
        rows = [self._keyed(source, rows) for source, rows in self._held]
        self._held = []
        yield from self._in_memory(rows)

    def _begin_ranges(self) -> None:
        """Divides the keys into ranges, and writes the rows that are held to their files."""
        sort_bytes = self._clustering.sort_bytes
        sample = self._sample()
        for batch in self._sampled():
            sample.offer(self._clustering.key_columns(batch))
        sampled_rows = sample.rows()
        assert sampled_rows is not None
        keys = self._learn_from(sampled_rows)
        size = sample.count * self._held_bytes // max(1, self._held_rows)
        ranges = min(MOST_FILES // 2, -(-2 * size // sort_bytes))
        self._folder = self._stack.enter_context(scratch_folder())
        cuts = cuts_between(keys, ranges)
        self._ranges = self._range_files(cuts)
        held, self._held, self._held_bytes = self._held, [], 0
        for source, rows in held:
            self._ranges.add(self._keyed(source, rows))

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
        ranges = min(MOST_FILES // 2, -(-2 * file.bytes // self._clustering.sort_bytes))
        cuts = cuts_between(keys_of(sampled_rows), ranges)
        # A cut between two keys of the file, so that each part is smaller.
        cuts = np.unique(np.append(cuts, np.uint64(file.greatest)))
        range_files = self._range_files(cuts)
        for rows in file.read():
            range_files.add(rows)
        range_files.close()
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
            order = pa.array(np.argsort(keys_of(rows), kind="stable"))
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
        self._keys = CurveKeys.learned(self._clustering, sample)
        self.points = self._keys.points(sample)
        return self._keys.ranked(sample)[1]

    def _keyed(self, source: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Appends the keys, and notes the ranks of the source."""
        assert self._keys is not None
        ranks, keys = self._keys.ranked(self._clustering.key_columns(rows))
        self.sources.add(source, ranks)
        return pa.RecordBatch.from_arrays([*rows.columns, pa.array(keys)], schema=self._schema)


def _without_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select(range(rows.num_columns - 1))
