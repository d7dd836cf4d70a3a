"""The files that a table would have after clustering, as bounds that filters can be tried on.

The model: each partition has as many files as its bytes fill at the target size, F of them; with d
keys, each key is cut into F^(1/d) slices with equal numbers of rows, and each combination of slices
is one file. Other columns keep the bounds of their partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.protocol.layout.bounds import (
    ColumnBounds,
    FileBounds,
    Numbers,
    Path,
    order_keys,
)

MOST_FILES = 100_000
"""The number of planned files, besides one for each partition; larger tables get larger files."""


def ideal_files(
    files: FileBounds,
    keys: Sequence[Path],
    samples: Mapping[Path, pa.Array],
    *,
    target_bytes: int,
) -> FileBounds:
    """Returns the files of the table clustered by `keys`.

    `samples` are the ascending values that `probes.sampled_values` drew from each key.
    """
    bytes_of = np.bincount(files.partition, files.size, files.partitions).astype(np.int64)
    target = max(target_bytes, int(bytes_of.sum()) // MOST_FILES, 1)
    per_key = _slices(np.maximum(1, np.round(bytes_of / target)), len(keys))
    count = (per_key ** len(keys)).astype(np.int64)
    partition = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(partition)) - np.repeat(np.cumsum(count) - count, count)
    columns = {}
    for path, column in files.columns.items():
        extent = _Extent(column, files.partition, files.partitions)
        if path in keys and len(samples[path]):
            place = number // per_key[partition] ** keys.index(path) % per_key[partition]
            columns[path] = extent.cut(samples[path], partition, place, per_key)
        else:
            columns[path] = extent.whole(partition)
    rows_of = np.bincount(files.partition, np.maximum(files.rows, 0), files.partitions)
    return FileBounds(
        size=(bytes_of[partition] // count[partition]).astype(np.int64),
        rows=(rows_of[partition] // count[partition]).astype(np.int64),
        partition=partition,
        columns=columns,
    )


def _slices(files: npt.NDArray[np.float64], keys: int) -> Numbers:
    # Rounded down, but not by the error of the root of a whole power.
    found: Numbers = np.maximum(1, np.floor(files ** (1 / keys) + 1e-9)).astype(np.int64)
    return found


class _Extent:
    """The range of a column in each partition."""

    def __init__(self, column: ColumnBounds, partition: Numbers, partitions: int) -> None:
        self._column = column
        known = np.flatnonzero(column.known)
        self._at = pa.array(known)
        least, greatest = column.least.take(self._at), column.greatest.take(self._at)
        low, high = order_keys(least, greatest)
        self._first = _extreme(low, partition[known], partitions)
        self._last = _extreme(-high, partition[known], partitions)
        nulls = np.bincount(partition, column.nulls != 0, partitions)
        values = np.bincount(partition, ~column.all_null, partitions)
        self._nulls = np.where(nulls > 0, -1, 0)
        self._empty = values == 0
        self._open_ended = np.bincount(partition, column.unknown, partitions) > 0
        self._ends = least, greatest

    def whole(self, partition: Numbers) -> ColumnBounds:
        """The same range for all files of a partition."""
        least, greatest = self._ends
        # A file without bounds has values that may lie outside of those of the others.
        first, last = (
            np.where(self._open_ended, -1, rows)[partition] for rows in (self._first, self._last)
        )
        return self._bounds(least.take(_or_null(first)), greatest.take(_or_null(last)), partition)

    def cut(
        self, values: pa.Array, partition: Numbers, place: Numbers, slices: Numbers
    ) -> ColumnBounds:
        """The range of the slice `place` of each file, cut at drawn values."""
        least, greatest = self._ends
        low, high, drawn = order_keys(least, greatest, values)
        first, last = self._first, self._last
        known = (first >= 0) & (last >= 0)
        if not len(low):
            return self.whole(partition)
        start = np.where(known, np.searchsorted(drawn, low[first], "left"), 0)
        stop = np.where(known, np.searchsorted(drawn, high[last], "right"), len(drawn))
        own, width, start = slices[partition], (stop - start)[partition], start[partition]
        # Odd values are borders, even values are filters.
        border = (start + width * place // own) | 1
        until = (start + width * (place + 1) // own) | 1
        border, until = (np.minimum(each, len(values) - 1) for each in (border, until))
        joined = pa.concat_arrays([values, least, greatest])
        lower = np.where(place == 0, _shifted(first, len(values))[partition], border)
        offset = len(values) + len(least)
        upper = np.where(place == own - 1, _shifted(last, offset)[partition], until)
        return self._bounds(joined.take(_or_null(lower)), joined.take(_or_null(upper)), partition)

    def _bounds(self, least: pa.Array, greatest: pa.Array, partition: Numbers) -> ColumnBounds:
        return ColumnBounds(
            kind=self._column.kind,
            least=least,
            greatest=greatest,
            nulls=self._nulls[partition],
            all_null=self._empty[partition],
            is_partition=self._column.is_partition,
        )


def _extreme(keys: npt.NDArray[np.generic], partition: Numbers, partitions: int) -> Numbers:
    """Returns the row with the least key of each partition; -1 for a partition without rows."""
    order = np.lexsort((keys, partition))
    found = np.full(partitions, -1, np.int64)
    first = order[np.flatnonzero(np.diff(partition[order], prepend=-1))]
    found[partition[first]] = first
    return found


def _shifted(rows: Numbers, by: int) -> Numbers:
    return np.where(rows < 0, -1, rows + by)


def _or_null(rows: Numbers) -> pa.Array:
    return pa.array(rows, mask=rows < 0)
