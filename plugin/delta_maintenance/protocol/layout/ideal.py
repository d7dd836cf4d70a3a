"""The files that a table would have after clustering, as bounds that filters can be tried on.

The model: each partition has as many files as its bytes fill at the target size, F of them; with d
keys, each key is cut into F^(1/d) slices with equal numbers of rows, and each combination of slices
is one file. Other columns keep the bounds of their partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_maintenance.protocol.columns.arrays import to_bools
from delta_maintenance.protocol.layout.bounds import (
    ColumnBounds,
    FileBounds,
    Keys,
    Numbers,
    Path,
    by_number,
    order_keys,
)

MOST_FILES = 100_000
"""The number of planned files, besides one for each partition; larger tables get larger files."""


class Clustering:
    """The clusterings of one table. Keeps the ranges of the columns that it has looked at."""

    def __init__(self, files: FileBounds, *, target_bytes: int) -> None:
        self._files = files
        self._bytes = np.bincount(files.partition, files.size, files.partitions).astype(np.int64)
        self._rows = np.bincount(files.partition, np.maximum(files.rows, 0), files.partitions)
        self._target = max(target_bytes, int(self._bytes.sum()) // MOST_FILES, 1)
        self._extents: dict[Path, _Extent] = {}

    def know(self, path: Path, least: Keys, greatest: Keys) -> None:
        """Takes over the order keys of the files with bounds of a column."""
        files = self._files
        self._extents[path] = _Extent(
            files.columns[path], files.partition, files.partitions, (least, greatest)
        )

    def by(
        self,
        keys: Sequence[Path],
        samples: Mapping[Path, pa.Array],
        *,
        columns: Iterable[Path] | None = None,
    ) -> FileBounds:
        """Returns the files of the table clustered by `keys`, with the bounds of some columns.

        `samples` are the ascending values that `probes.sampled_values` drew from each key.
        """
        per_key = _slices(np.maximum(1, np.round(self._bytes / self._target)), len(keys))
        count = (per_key ** len(keys)).astype(np.int64)
        partition = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(partition)) - np.repeat(np.cumsum(count) - count, count)
        found = {}
        for path in self._files.columns if columns is None else columns:
            extent = self._extent(path)
            if path in keys and len(samples[path]):
                place = number // per_key[partition] ** keys.index(path) % per_key[partition]
                found[path] = extent.cut(samples[path], partition, place, per_key)
            else:
                found[path] = extent.whole(partition)
        return FileBounds(
            size=(self._bytes[partition] // count[partition]).astype(np.int64),
            rows=(self._rows[partition] // count[partition]).astype(np.int64),
            partition=partition,
            columns=found,
        )

    def _extent(self, path: Path) -> _Extent:
        if path not in self._extents:
            files = self._files
            self._extents[path] = _Extent(files.columns[path], files.partition, files.partitions)
        return self._extents[path]


def _slices(files: npt.NDArray[np.float64], keys: int) -> Numbers:
    # Rounded down, but not by the error of the root of a whole power.
    found: Numbers = np.maximum(1, np.floor(files ** (1 / keys) + 1e-9)).astype(np.int64)
    return found


class _Extent:
    """The range of a column in each partition."""

    def __init__(
        self,
        column: ColumnBounds,
        partition: Numbers,
        partitions: int,
        keys: tuple[Keys, Keys] | None = None,
    ) -> None:
        self._column = column
        known = np.flatnonzero(column.known)
        at, own = pa.array(known), partition[known]
        least, greatest = column.least.take(at), column.greatest.take(at)
        low, high = keys or order_keys(least, greatest)
        first, last = _rows_of_least(low, own, partitions), _rows_of_least(-high, own, partitions)
        # One value for each partition, null for a partition without bounds.
        self._least, self._greatest = least.take(_or_null(first)), greatest.take(_or_null(last))
        nulls = np.bincount(partition, column.nulls != 0, partitions)
        values = np.bincount(partition, ~column.all_null, partitions)
        self._nulls = np.where(nulls > 0, -1, 0)
        self._empty = values == 0
        self._open_ended = np.bincount(partition, column.unknown, partitions) > 0

    def whole(self, partition: Numbers) -> ColumnBounds:
        """The same range for all files of a partition."""
        # A file without bounds has values that may lie outside of those of the others.
        rows = _or_null(np.where(self._open_ended, -1, np.arange(len(self._empty)))[partition])
        return self._bounds(self._least.take(rows), self._greatest.take(rows), partition)

    def cut(
        self, values: pa.Array, partition: Numbers, place: Numbers, slices: Numbers
    ) -> ColumnBounds:
        """The range of the slice `place` of each file, cut at drawn values."""
        some = np.flatnonzero(to_bools(self._least.is_valid()))
        at = pa.array(some)
        low, high, drawn = order_keys(self._least.take(at), self._greatest.take(at), values)
        start = np.zeros(len(self._empty), np.int64)
        stop = np.full(len(self._empty), len(drawn))
        start[some] = np.searchsorted(drawn, low, "left")
        stop[some] = np.searchsorted(drawn, high, "right")
        own, width, start = slices[partition], (stop - start)[partition], start[partition]
        # Odd values are borders, even values are filters.
        lower = (start + width * place // own) | 1
        upper = (start + width * (place + 1) // own) | 1
        lower, upper = (np.minimum(each, len(values) - 1) for each in (lower, upper))
        lower = np.where(place == 0, len(values) + partition, lower)
        upper = np.where(place == own - 1, len(values) + len(self._empty) + partition, upper)
        joined = pa.concat_arrays([values, self._least, self._greatest])
        return self._bounds(joined.take(pa.array(lower)), joined.take(pa.array(upper)), partition)

    def _bounds(self, least: pa.Array, greatest: pa.Array, partition: Numbers) -> ColumnBounds:
        return ColumnBounds(
            kind=self._column.kind,
            least=least,
            greatest=greatest,
            nulls=self._nulls[partition],
            all_null=self._empty[partition],
            is_partition=self._column.is_partition,
            is_indexed=self._column.is_indexed,
        )


def _rows_of_least(keys: Keys, partition: Numbers, partitions: int) -> Numbers:
    """Returns a row with the least key of each partition; -1 for a partition without rows."""
    found = np.full(partitions, -1, np.int64)
    if len(keys):
        order = by_number(partition)
        starts = np.flatnonzero(np.diff(partition[order], prepend=-1))
        least = np.zeros(partitions, keys.dtype)
        least[partition[order[starts]]] = np.minimum.reduceat(keys[order], starts)
        rows = np.flatnonzero(keys == least[partition])
        found[partition[rows]] = rows
    return found


def _or_null(rows: Numbers) -> pa.Array:
    return pa.array(rows, mask=rows < 0)
