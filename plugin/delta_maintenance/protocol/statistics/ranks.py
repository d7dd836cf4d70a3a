"""Ranks of values, curves over ranks, and the bounds of data files as ranks.

Ranks are small integers in the order of the values, about equally frequent. A column has one rank
for each of its values if there are few, or one for each of many ranges with about the same number
of rows. Ranks make columns of all types comparable with each other. They follow a sample; values
outside of it get the rank of the range in which they are. Nulls have the rank 0, and NaN has the
highest one. Positive and negative zero are equal.

A row is a point whose coordinates are the ranks of its values. Its key is the position of the point
on a curve; rows with neighbouring keys have similar ranks in every column. A file must be read for
a point if the point is within its bounds in every column. All functions work on whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.statistics.as_json import align_statistics, read_statistics
from delta_maintenance.protocol.statistics.stats import selected_statistics

Curve = Literal["hilbert", "z-order", "linear"]
Ranks = npt.NDArray[np.uint64]

KEY_BITS = 64
"""The number of bits of a key."""


def curve_keys(ranks: Sequence[Ranks], bits: Sequence[int], curve: Curve) -> Ranks:
    """Returns the key of each point.

    `ranks` has one array for each column, and `bits` the number of bits of its ranks, of which at
    most 64 are used together. Columns with fewer bits than others are stretched, so that they are
    divided in the first steps of the curve; columns without bits have no effect. `linear` is the
    lexicographic order of the columns.
    """
    used = [(rank, width) for rank, width in zip(ranks, bits, strict=True) if width]
    if not used:
        return np.zeros(len(ranks[0]) if len(ranks) else 0, np.uint64)
    if curve == "linear" or len(used) == 1:
        key = used[0][0].astype(np.uint64)
        for rank, width in used[1:]:
            key = (key << np.uint64(width)) | rank
        return key
    widest = max(width for _, width in used)
    # The narrowest type, of which the processor works on most values at once.
    narrow = np.min_scalar_type((1 << widest) - 1)
    axes = [(rank << np.uint64(widest - width)).astype(narrow) for rank, width in used]
    return interleave_bits(_hilbert(axes, widest) if curve == "hilbert" else axes, widest)


def bits_for(columns: int) -> int:
    """Returns the number of bits that the ranks of each of these columns can have in a key."""
    return min(16, KEY_BITS // max(1, columns))


def interleave_bits(axes: Sequence[npt.NDArray[Any]], bits: int) -> Ranks:
    """Returns the bits of all axes in turn, the most significant bit of the first axis first."""
    key = np.zeros(len(axes[0]), np.uint64)
    for low in range(0, bits, 8):
        spread = _spread_bytes(len(axes)) << np.uint64(low * len(axes))
        for at, axis in enumerate(reversed(axes)):
            key |= spread[(axis >> low) & 255] << np.uint64(at)
    return key


@lru_cache(16)
def _spread_bytes(distance: int) -> Ranks:
    """Returns every byte with its bits at this distance from each other."""
    spread = np.zeros(256, np.uint64)
    for bit in range(min(8, -(-KEY_BITS // distance))):
        is_set = (np.arange(256, dtype=np.uint64) >> np.uint64(bit)) & np.uint64(1)
        spread |= is_set << np.uint64(bit * distance)
    return spread


def _hilbert(axes: Sequence[npt.NDArray[Any]], bits: int) -> list[npt.NDArray[Any]]:
    """Transforms coordinates so that their interleaved bits are positions on the Hilbert curve.

    The transformation is that of J. Skilling, "Programming the Hilbert curve" (2004): the rotations
    of each level are undone, from the coarsest level on, and the result is Gray-encoded.
    """
    x = [axis.copy() for axis in axes]
    for level in range(bits - 1, 0, -1):
        below = (1 << level) - 1
        for axis in x:
            # All bits of a value, or none. A choice between two arrays would take far longer.
            is_set = -((axis >> level) & 1)
            # Inverts the low bits of the first axis, or exchanges them with those of this axis.
            exchanged = (x[0] ^ axis) & ~is_set & below
            x[0] ^= (is_set & below) | exchanged
            if axis is not x[0]:
                axis ^= exchanged
    for before, axis in zip(x, x[1:], strict=False):
        axis ^= before
    flipped = np.zeros_like(x[0])
    for level in range(bits - 1, 0, -1):
        flipped ^= -((x[-1] >> level) & 1) & ((1 << level) - 1)
    return [axis ^ flipped for axis in x]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRanks:
    """The ranks of one column."""

    cuts: pa.Array
    """The least value of each range but the first, ascending and distinct."""
    has_nulls: bool
    """Whether nulls have a rank of their own."""
    has_nan: bool
    """Whether NaN has a rank of its own."""

    @classmethod
    def of(cls, sample: pa.Array, *, bits: int) -> ColumnRanks:
        """Returns ranks of at most this number of bits for a sample of the column."""
        values = comparable(sample)
        is_nan = _is_nan(values)
        finite = (values if is_nan is None else values.filter(pc.invert(is_nan))).drop_null()
        has_nulls = values.null_count > 0
        has_nan = len(finite) + values.null_count < len(values)
        max_ranks = (1 << bits) - has_nulls - has_nan
        cuts = pc.unique(finite)
        cuts = cuts.take(pc.array_sort_indices(cuts))[1:]
        if len(cuts) >= max_ranks:
            ordered = finite.take(pc.array_sort_indices(finite))
            at = np.arange(1, max_ranks, dtype=np.int64) * len(ordered) // max(1, max_ranks)
            cuts = pc.unique(ordered.take(pa.array(at, pa.int64())))
            if len(cuts) and cuts[0].equals(ordered[0]):
                cuts = cuts[1:]
        return cls(cuts=cuts, has_nulls=has_nulls, has_nan=has_nan)

    @property
    def count(self) -> int:
        """The number of ranks."""
        return self.has_nulls + len(self.cuts) + 1 + self.has_nan

    @property
    def bits(self) -> int:
        """The number of bits of a rank; 0 if all values have the same rank."""
        return (self.count - 1).bit_length()

    def ranks(self, column: pa.Array) -> Ranks:
        """Returns the rank of each value of an array with the type of the sample."""
        values = comparable(column)
        is_nan = _is_nan(values)
        ranks = _count_at_most(self.cuts, values) + np.uint64(self.has_nulls)
        if is_nan is not None:
            ranks[pc.fill_null(is_nan, False).to_numpy(zero_copy_only=False)] = self.count - 1
        if values.null_count:
            ranks[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
        return ranks


def can_be_ranked(kind: pa.DataType) -> bool:
    """Whether values of this type have an order in which files can be clustered."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_temporal(kind)
    )


def comparable(values: pa.Array) -> pa.Array:
    """Returns the values in a form with the same order."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return comparable(values.dictionary_decode())
    if pa.types.is_string(kind):
        return values.cast(pa.binary())
    if pa.types.is_date(kind):
        return values.view(pa.int32()).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return values.view(pa.int64())
    if pa.types.is_floating(kind):
        # The sum of negative and positive zero is positive zero.
        return pc.add(values.cast(pa.float64()), 0.0)
    return values.cast(pa.int64()) if pa.types.is_integer(kind) else values


def _is_nan(values: pa.Array) -> pa.BooleanArray | None:
    """Returns which values are NaN; None if there are none."""
    if not pa.types.is_floating(values.type):
        return None
    is_nan = pc.is_nan(values)
    return is_nan if pc.any(is_nan).as_py() else None


def _count_at_most(cuts: pa.Array, values: pa.Array) -> Ranks:
    """Returns the number of cuts that are at most each value; any number for null and NaN."""
    if not len(cuts):
        return np.zeros(len(values), np.uint64)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        filled = pc.fill_null(values, pa.scalar(0, values.type)) if values.null_count else values
        numbers = filled.to_numpy()
        # Searches in ascending order find most cuts in the processor's cache.
        ascending = np.argsort(numbers)
        below = np.empty(len(numbers), np.uint64)
        below[ascending] = np.searchsorted(cuts.to_numpy(), numbers[ascending], side="right")
        return below
    # Each distinct value once, because comparing texts and decimals is slow. A cut comes before an
    # equal value, because the order of equal elements is kept.
    encoded = values.dictionary_encode()
    if not len(encoded.dictionary):
        return np.zeros(len(values), np.uint64)
    order = pc.array_sort_indices(pa.concat_arrays([cuts, encoded.dictionary])).to_numpy()
    is_cut = order < len(cuts)
    distinct = np.empty(len(encoded.dictionary), np.uint64)
    distinct[order[~is_cut] - np.uint64(len(cuts))] = np.cumsum(is_cut)[~is_cut]
    places = pc.fill_null(encoded.indices, 0).to_numpy()
    ranks: Ranks = distinct[places]
    return ranks


_CELLS = 1 << 22
"""The number of comparisons that are held in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """The bounds of files: one row for each file, one column for each clustering column."""

    low: Ranks
    high: Ranks
    rows: npt.NDArray[np.int64]
    """The number of rows of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What readers of single points read on average."""

    files: float
    """The number of files."""
    rows: float
    """The number of rows in these files."""


def depth_of(boxes: Boxes, points: Ranks) -> Depth:
    """Returns the averages over the points, which have one column for each clustering column."""
    if not len(points) or not len(boxes.rows):
        return Depth(files=0.0, rows=0.0)
    files = rows = 0.0
    for inside in files_at_points(*map(list, (boxes.low.T, boxes.high.T, points.T))):
        files += float(inside.sum())
        rows += float((inside @ boxes.rows.astype(np.float64)).sum())
    return Depth(files=files / len(points), rows=rows / len(points))


def files_at_points(
    low: Sequence[np.ndarray], high: Sequence[np.ndarray], points: Sequence[np.ndarray]
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yields, for some points at a time, which files contain each of them.

    Each sequence has one array for each column: the bounds of the files, or the points.
    """
    step = max(1, _CELLS // len(low[0]))
    for at in range(0, len(points[0]), step):
        columns = zip(low, high, (values[at : at + step, None] for values in points), strict=True)
        yield np.logical_and.reduce([(a <= value) & (value <= b) for a, b, value in columns])


def is_better(before: Depth, after: Depth) -> bool:
    """Whether files are clustered better than before, or so that they do not overlap at all."""
    return after.files < before.files or after.rows < before.rows or after.files <= 1.0


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringStatistics:
    """One row for each file, from its statistics; null where they lack a value."""

    rows: pa.Array
    low: Mapping[Path, pa.Array]
    high: Mapping[Path, pa.Array]
    nulls: Mapping[Path, pa.Array]
    omits_maxima: pa.BooleanArray
    """Files that state no maxima at all, because that of one column cannot be stated."""

    def is_complete(self, path: Path) -> npt.NDArray[np.bool_]:
        """Returns which files have the statistics that a clustering column needs: a null count,
        and bounds unless all values are null. Beside NaN there is no maximum.
        """
        high = self.high[path]
        above = pc.or_(pc.is_valid(high), self.omits_maxima)
        if pa.types.is_floating(high.type):
            above = pc.is_valid(self.low[path])
        bounded = pc.and_(pc.is_valid(self.low[path]), above)
        only_nulls = pc.fill_null(pc.equal(self.nulls[path], self.rows), False)
        complete = pc.and_(pc.is_valid(self.nulls[path]), pc.or_(bounded, only_nulls))
        return to_bools(complete)

    def boxes(self, columns: Mapping[Path, ColumnRanks]) -> Boxes:
        """Returns the bounds as ranks. A missing bound is the least or the greatest rank."""
        low, high = [], []
        for path, ranks in columns.items():
            lowest, highest = ranks.ranks(self.low[path]), ranks.ranks(self.high[path])
            has_nulls = ~to_bools(pc.fill_null(pc.equal(self.nulls[path], 0), False))
            # Ranks of nulls are 0, also those of missing bounds.
            lowest[has_nulls | ~self.is_complete(path)] = 0
            only_nulls = to_bools(pc.fill_null(pc.equal(self.nulls[path], self.rows), False))
            highest[to_bools(pc.is_null(self.high[path])) & ~only_nulls] = ranks.count - 1
            low.append(lowest)
            high.append(highest)
        counts = pc.fill_null(self.rows, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Boxes(low=_columns(low, counts), high=_columns(high, counts), rows=counts)


def file_bounds(
    stats: pa.Array, columns: Mapping[Path, pa.DataType], *, parsed: pa.StructArray | None = None
) -> ClusteringStatistics:
    """Reads the statistics of these columns, given their physical paths and types.

    `stats` is JSON text; `parsed` has the statistics of files without it.
    """
    kind = selected_statistics(columns, columns)
    statistics = read_statistics(stats, kind)
    also = None if parsed is None else align_statistics(parsed, kind).values

    def leaf(*path: str) -> pa.Array:
        values = pc.struct_field(statistics, list(path))
        return values if also is None else pc.coalesce(values, pc.struct_field(also, list(path)))

    return ClusteringStatistics(
        rows=leaf("numRecords"),
        low={path: leaf("minValues", *path) for path in columns},
        high={path: leaf("maxValues", *path) for path in columns},
        nulls={path: leaf("nullCount", *path) for path in columns},
        omits_maxima=pc.and_(pc.is_valid(leaf("minValues")), pc.is_null(leaf("maxValues"))),
    )


def _columns(columns: Sequence[Ranks], rows: npt.NDArray[np.int64]) -> Ranks:
    if not columns:
        return np.zeros((len(rows), 0), np.uint64)
    return np.stack(columns, axis=1)
