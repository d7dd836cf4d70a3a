"""How well data files are laid out: overlap and depth, ideal files, and what filters read.

The overlap of a file is the number of other files whose range has a value in common with its own.
Its depth is the greatest number of files, itself included, whose ranges share one value of its
range: 1 if a reader of any of its values opens no other file. Both are counted inside a partition,
because no clustering moves rows between partitions.

The ideal files are those after clustering. Each partition has as many files as its bytes fill at
the target size, F of them; with d keys, each key is cut into F^(1/d) slices with equal numbers of
rows, and each combination of slices is one file. Other columns keep the bounds of their partition.

The values of filters are drawn from the bounds of the files: each file holds its rows evenly
between its bounds, which is all that the log says of them. The draw is the same each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.statistics.bounds import (
    ColumnBounds,
    FileBounds,
    Keys,
    Mask,
    Numbers,
    Path,
    order_keys,
    sort_order,
)
from delta_maintenance.protocol.statistics.ranks import files_at_points

_EXACT = 16
"""Depths up to this one have buckets of their own; the others are rounded up to powers of two."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """For each file."""

    overlap: Numbers
    depth: Numbers


def overlaps(lowest: Keys, highest: Keys, partition: Numbers) -> Overlap:
    """Returns overlap and depth of each file, from the order keys of its bounds."""
    count = len(lowest)
    if not count:
        return Overlap(np.zeros(0, np.int64), np.zeros(0, np.int64))
    # A range includes both of its ends: of equal ends, the lower ones come first.
    order = sort_order(
        np.concatenate([lowest, np.maximum(lowest, highest)]),
        np.concatenate([partition, partition]),
    )
    is_lower = order < count
    opened = np.cumsum(is_lower)
    closed_before = np.arange(2 * count) - opened + is_lower
    at = np.empty(2 * count, np.int64)
    at[order] = np.arange(2 * count)
    lower_places, upper_places = at[:count], at[count:]
    overlap = opened[upper_places] - closed_before[lower_places] - 1
    profile = (opened - closed_before)[is_lower]
    return Overlap(
        overlap, _greatest_between(profile, opened[lower_places] - 1, opened[upper_places] - 1)
    )


def overlap_elsewhere(lowest: Keys, highest: Keys, partition: Numbers, unit: Numbers) -> Mask:
    """Returns which files have a value in common with a file of another unit of their partition.

    The files of a unit are in one partition.
    """
    every = overlaps(lowest, highest, partition).overlap
    overlaps_elsewhere: Mask = every > overlaps(lowest, highest, unit).overlap
    return overlaps_elsewhere


def histogram(depth: Numbers) -> dict[int, int]:
    """Returns the number of files by depth: 1, 2, 3 … 16, then up to 32, 64 …"""
    up = np.where(depth <= _EXACT, depth, 1 << np.ceil(np.log2(np.maximum(depth, 1))).astype(int))
    depths, counts = np.unique(up, return_counts=True)
    return dict(zip(depths.tolist(), counts.tolist(), strict=True))


def _greatest_between(values: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Returns the greatest of `values[first[i] : last[i] + 1]` for each `i`."""
    greatest_values = np.zeros(len(start), np.int64)
    level = np.log2(end - start + 1).astype(np.int64)
    # The greatest of each run of 1, 2, 4 … values; two runs cover every range.
    runs, width = values, 1
    for power in range(int(level.max()) + 1):
        rows = np.flatnonzero(level == power)
        greatest_values[rows] = np.maximum(runs[start[rows]], runs[end[rows] - width + 1])
        runs = np.maximum(runs[:-width], runs[width:])
        width *= 2
    return greatest_values


MOST_FILES = 100_000
"""The number of planned files, besides one for each partition; larger tables get larger files."""


class PlannedClustering:
    """The clusterings of one table. Keeps the ranges of the columns that it has looked at."""

    def __init__(self, files: FileBounds, *, target_bytes: int) -> None:
        self._files = files
        self._bytes = np.bincount(files.partition, files.size, files.partitions).astype(np.int64)
        self._rows = np.bincount(files.partition, np.maximum(files.rows, 0), files.partitions)
        self._target = max(target_bytes, int(self._bytes.sum()) // MOST_FILES, 1)
        self._extents: dict[Path, _Extent] = {}

    def know(self, path: Path, lowest: Keys, highest: Keys) -> None:
        """Takes over the order keys of the files with bounds of a column."""
        files = self._files
        self._extents[path] = _Extent(
            files.columns[path], files.partition, files.partitions, (lowest, highest)
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
        planned_columns = {}
        for path in self._files.columns if columns is None else columns:
            extent = self._extent(path)
            if path in keys and len(samples[path]):
                place = number // per_key[partition] ** keys.index(path) % per_key[partition]
                planned_columns[path] = extent.cut(samples[path], partition, place, per_key)
            else:
                planned_columns[path] = extent.whole(partition)
        return FileBounds(
            size=(self._bytes[partition] // count[partition]).astype(np.int64),
            rows=(self._rows[partition] // count[partition]).astype(np.int64),
            partition=partition,
            columns=planned_columns,
        )

    def _extent(self, path: Path) -> _Extent:
        if path not in self._extents:
            files = self._files
            self._extents[path] = _Extent(files.columns[path], files.partition, files.partitions)
        return self._extents[path]


def _slices(files: npt.NDArray[np.float64], keys: int) -> Numbers:
    # Rounded down, but not by the error of the root of a whole power.
    slice_counts: Numbers = np.maximum(1, np.floor(files ** (1 / keys) + 1e-9)).astype(np.int64)
    return slice_counts


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
        known_rows = np.flatnonzero(column.known)
        at, own_partition = pa.array(known_rows), partition[known_rows]
        lowest, highest = column.least.take(at), column.greatest.take(at)
        low, high = keys or order_keys(lowest, highest)
        lower_rows, upper_rows = (
            _rows_of_least(low, own_partition, partitions),
            _rows_of_least(-high, own_partition, partitions),
        )
        # One value for each partition, null for a partition without bounds.
        self._least, self._greatest = (
            lowest.take(_or_null(lower_rows)),
            highest.take(_or_null(upper_rows)),
        )
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
        bounded = np.flatnonzero(to_bools(self._least.is_valid()))
        at = pa.array(bounded)
        low, high, drawn = order_keys(self._least.take(at), self._greatest.take(at), values)
        start = np.zeros(len(self._empty), np.int64)
        stop = np.full(len(self._empty), len(drawn))
        start[bounded] = np.searchsorted(drawn, low, "left")
        stop[bounded] = np.searchsorted(drawn, high, "right")
        slice_count, width, start = slices[partition], (stop - start)[partition], start[partition]
        # Odd values are borders, even values are filters.
        lower = (start + width * place // slice_count) | 1
        upper = (start + width * (place + 1) // slice_count) | 1
        lower, upper = (
            np.minimum(place_of_value, len(values) - 1) for place_of_value in (lower, upper)
        )
        lower = np.where(place == 0, len(values) + partition, lower)
        upper = np.where(
            place == slice_count - 1, len(values) + len(self._empty) + partition, upper
        )
        joined = pa.concat_arrays([values, self._least, self._greatest])
        return self._bounds(joined.take(pa.array(lower)), joined.take(pa.array(upper)), partition)

    def _bounds(self, lowest: pa.Array, highest: pa.Array, partition: Numbers) -> ColumnBounds:
        return ColumnBounds(
            kind=self._column.kind,
            least=lowest,
            greatest=highest,
            nulls=self._nulls[partition],
            all_null=self._empty[partition],
            is_partition=self._column.is_partition,
            is_indexed=self._column.is_indexed,
        )


def _rows_of_least(keys: Keys, partition: Numbers, partitions: int) -> Numbers:
    """Returns a row with the least key of each partition; -1 for a partition without rows."""
    least_rows = np.full(partitions, -1, np.int64)
    lowest = np.full(partitions, keys.max(initial=0), keys.dtype)
    np.minimum.at(lowest, partition, keys)
    rows = np.flatnonzero(keys == lowest[partition])
    least_rows[partition[rows]] = rows
    return least_rows


def _or_null(rows: Numbers) -> pa.Array:
    return pa.array(rows, mask=rows < 0)


SAMPLE = 2000
"""The number of drawn values."""
_RANGE = 0.01
"""The share of the rows in a range."""
_TURN = (5**0.5 - 1) / 2
_TEXT_BYTES = 6
_DECIMAL_DIGITS = 80
"""Enough for the product of the difference of two decimals and a double."""

_Means = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reads:
    """The mean shares, from 0 to 1, that a filter reads."""

    files: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Probes:
    """The mean over many filters of each kind."""

    point: Reads
    range: Reads


def sampled_values(column: ColumnBounds, weights: Numbers) -> pa.Array:
    """Draws values of a column, ascending, each file with a probability according to its weight."""
    rows = _drawn_rows(column.known, weights, SAMPLE)
    values = _values_in(column, rows, _shares(len(rows)))
    return values.take(pc.sort_indices(values))


def probe(
    lowest: Keys, highest: Keys, size: Numbers, values: Keys, *, unskippable: Numbers, count: int
) -> Probes:
    """Returns the shares of files and bytes that filters on one column read.

    `lowest`, `highest` and `size` describe the files with bounds; `unskippable` are the sizes of
    the files without, which every filter reads. `count` is the number of all files, also those
    without a value. `values` are drawn values, ascending.
    """
    total = int(size.sum()) + int(unskippable.sum())
    always = np.array([len(unskippable), int(unskippable.sum())], np.float64)
    if not len(values):
        none = Reads(_share(always[0], count), _share(always[1], total))
        return Probes(none, none)
    reads = _Intersections(lowest, highest, size, values)
    width = max(1, round(len(values) * _RANGE))
    last_value = len(values) - 1

    def mean(start: Numbers, until: Numbers) -> Reads:
        files, read = (float(sums.mean()) for sums in reads.between(start, until))
        return Reads(_share(files + always[0], count), _share(read + always[1], total))

    # Every other value, because the borders of planned files are drawn values too.
    starts = np.arange(0, max(1, last_value - width), 2)
    points = np.arange(0, last_value + 1, 2)
    return Probes(
        point=mean(points, points), range=mean(starts, np.minimum(starts + width, last_value))
    )


_DEPTH_SAMPLES = 128


def mean_depth(columns: Sequence[ColumnBounds], weights: Numbers) -> float:
    """Returns the mean number of files that may contain a combination of values of all columns.

    The combinations are drawn as values of one file each.
    """
    is_known = np.logical_and.reduce([column.known for column in columns])
    drawn = _drawn_rows(is_known, weights, _DEPTH_SAMPLES)
    if not len(drawn):
        return 0.0
    known_files = pa.array(np.flatnonzero(is_known))
    bounds = [
        order_keys(
            column.least.take(known_files),
            column.greatest.take(known_files),
            _values_in(column, drawn, _shares(len(drawn), turn / len(columns))),
        )
        for turn, column in enumerate(columns)
    ]
    covering = files_at_points(*zip(*bounds, strict=True))
    return sum(int(inside.sum()) for inside in covering) / len(drawn)


def _drawn_rows(is_known: Mask, weights: Numbers, count: int) -> Numbers:
    """Draws files among the known ones; a file may be drawn repeatedly."""
    rows = np.flatnonzero(is_known & (weights > 0))
    if not len(rows):
        return rows
    ends = np.cumsum(weights[rows].astype(np.float64))
    at = (np.arange(count) + 0.5) / count * ends[-1]
    drawn: Numbers = rows[np.minimum(np.searchsorted(ends, at), len(rows) - 1)]
    return drawn


def _shares(count: int, start: float = 0.0) -> _Means:
    """Returns shares from 0 to 1 that are spread evenly, also over each part of the sequence."""
    return np.asarray((np.arange(count) * _TURN + start) % 1, np.float64)


def _values_in(column: ColumnBounds, rows: Numbers, shares: npt.NDArray[np.float64]) -> pa.Array:
    """Returns a value of each file, at the given share of the way between its bounds."""
    kind, at = column.least.type, pa.array(rows)
    numbers = _as_numbers(kind)
    pairs = zip(
        column.least.take(at).cast(numbers).to_pylist(),
        column.greatest.take(at).cast(numbers).to_pylist(),
        shares.tolist(),
        strict=True,
    )
    return pa.array([_between(*pair) for pair in pairs], numbers).cast(kind)


class _Intersections:
    """Counts the files that intersect a range between two of the drawn values.

    The files are sorted into the gaps between the values, which is faster than sorting the files.
    """

    def __init__(self, lowest: Keys, highest: Keys, size: Numbers, values: Keys) -> None:
        self._values = values
        # A file has begun at a value from its least one on, and ended after its greatest one.
        begun = np.searchsorted(values, lowest, side="left")
        ended = np.searchsorted(values, highest, side="right")
        self._begun, self._ended = (self._sums(places, size) for places in (begun, ended))

    def between(self, start: Numbers, end: Numbers) -> tuple[_Means, _Means]:
        """Returns number and bytes of the files that intersect the ranges between two values."""
        begun, ended = self._begun[:, end], self._ended[:, start]
        files, read = begun - ended
        return files, read

    def _sums(self, place: Numbers, size: Numbers) -> _Means:
        width = len(self._values) + 1
        counts = [np.bincount(place, minlength=width), np.bincount(place, size, width)]
        return np.cumsum(np.stack(counts).astype(np.float64), axis=1)


def _share(amount: float, total: float) -> float:
    return min(1.0, amount / total) if total else 0.0


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _between(lowest: Any, highest: Any, share: float) -> Any:
    match lowest:
        case bool():
            return highest if share >= 0.5 else lowest
        case int():
            # Exact, because products with a double would leave 64 bits.
            return min(highest, lowest + (highest - lowest + 1) * int(share * 2**32) // 2**32)
        case bytes():
            return _text_between(lowest, highest, share)
        case Decimal():
            with localcontext(prec=_DECIMAL_DIGITS):
                (_, digits, exponent), scale = (highest - lowest).as_tuple(), Decimal(str(share))
                assert isinstance(exponent, int)
                step = Decimal((0, digits, 0)) * scale
                return lowest + step.to_integral_value().scaleb(exponent)
    value = lowest + (highest - lowest) * share
    return value if np.isfinite(value) else highest if share >= 0.5 else lowest


def _text_between(lowest: bytes, highest: bytes, share: float) -> bytes:
    if highest <= lowest:
        return lowest
    common = next(
        (at for at, pair in enumerate(zip(lowest, highest, strict=False)) if len(set(pair)) > 1),
        min(len(lowest), len(highest)),
    )
    low, high = (
        int.from_bytes(text[common : common + _TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
        for text in (lowest, highest)
    )
    middle = low + int((high - low) * share)
    return max(lowest, min(highest, lowest[:common] + middle.to_bytes(_TEXT_BYTES)))
