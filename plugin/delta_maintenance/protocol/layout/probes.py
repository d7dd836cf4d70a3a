"""How much of a table simple filters read: one value, and a range with 1% of the rows.

The values are drawn from the bounds of the files: each file holds its rows evenly between its
bounds, which is all that the log says of them. The draw is the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.layout.bounds import ColumnBounds, Keys, Mask, Numbers, order_keys

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
    least: Keys, greatest: Keys, size: Numbers, values: Keys, *, unskippable: Numbers, count: int
) -> Probes:
    """Returns the shares of files and bytes that filters on one column read.

    `least`, `greatest` and `size` describe the files with bounds; `unskippable` are the sizes of
    the files without, which every filter reads. `count` is the number of all files, also those
    without a value. `values` are drawn values, ascending.
    """
    total = int(size.sum()) + int(unskippable.sum())
    always = np.array([len(unskippable), int(unskippable.sum())], np.float64)
    if not len(values):
        none = Reads(_share(always[0], count), _share(always[1], total))
        return Probes(none, none)
    reads = _Intersections(least, greatest, size, values)
    width = max(1, round(len(values) * _RANGE))
    last = len(values) - 1

    def mean(first: Numbers, until: Numbers) -> Reads:
        files, read = (float(each.mean()) for each in reads.between(first, until))
        return Reads(_share(files + always[0], count), _share(read + always[1], total))

    # Every other value, because the borders of planned files are drawn values too.
    starts = np.arange(0, max(1, last - width), 2)
    points = np.arange(0, last + 1, 2)
    return Probes(point=mean(points, points), range=mean(starts, np.minimum(starts + width, last)))


def mean_depth(columns: Sequence[ColumnBounds], weights: Numbers, samples: int = 128) -> float:
    """Returns the mean number of files that may contain a combination of values of all columns.

    The combinations are drawn as values of one file each.
    """
    known = np.logical_and.reduce([column.known for column in columns])
    drawn = _drawn_rows(known, weights, samples)
    if not len(drawn):
        return 0.0
    some = pa.array(np.flatnonzero(known))
    covering = np.ones((len(drawn), len(some)), np.bool_)
    for turn, column in enumerate(columns):
        shares = _shares(len(drawn), turn / len(columns))
        low, high, value = order_keys(
            column.least.take(some), column.greatest.take(some), _values_in(column, drawn, shares)
        )
        for number, each in enumerate(value):
            covering[number] &= (low <= each) & (each <= high)
    return float(covering.sum() / len(drawn))


def _drawn_rows(known: Mask, weights: Numbers, count: int) -> Numbers:
    """Draws files among the known ones; a file may be drawn repeatedly."""
    rows = np.flatnonzero(known & (weights > 0))
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

    def __init__(self, least: Keys, greatest: Keys, size: Numbers, values: Keys) -> None:
        self._values = values
        # A file has begun at a value from its least one on, and ended after its greatest one.
        begun = np.searchsorted(values, least, side="left")
        ended = np.searchsorted(values, greatest, side="right")
        self._begun, self._ended = (self._sums(each, size) for each in (begun, ended))

    def between(self, first: Numbers, last: Numbers) -> tuple[_Means, _Means]:
        """Returns number and bytes of the files that intersect the ranges between two values."""
        begun, ended = self._begun[:, last], self._ended[:, first]
        files, read = begun - ended
        return files, read

    def _sums(self, place: Numbers, size: Numbers) -> _Means:
        width = len(self._values) + 1
        both = [np.bincount(place, minlength=width), np.bincount(place, size, width)]
        return np.cumsum(np.stack(both).astype(np.float64), axis=1)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _between(least: Any, greatest: Any, share: float) -> Any:
    match least:
        case bool():
            return greatest if share >= 0.5 else least
        case int():
            # Exact, because products with a double would leave 64 bits.
            return min(greatest, least + (greatest - least + 1) * int(share * 2**32) // 2**32)
        case bytes():
            return _text_between(least, greatest, share)
        case Decimal():
            with localcontext(prec=_DECIMAL_DIGITS):
                (_, digits, exponent), scale = (greatest - least).as_tuple(), Decimal(str(share))
                assert isinstance(exponent, int)
                step = Decimal((0, digits, 0)) * scale
                return least + step.to_integral_value().scaleb(exponent)
    found = least + (greatest - least) * share
    return found if np.isfinite(found) else greatest if share >= 0.5 else least


def _text_between(least: bytes, greatest: bytes, share: float) -> bytes:
    if greatest <= least:
        return least
    same = next(
        (at for at, pair in enumerate(zip(least, greatest, strict=False)) if len(set(pair)) > 1),
        min(len(least), len(greatest)),
    )
    low, high = (
        int.from_bytes(text[same : same + _TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
        for text in (least, greatest)
    )
    middle = low + int((high - low) * share)
    return max(least, min(greatest, least[:same] + middle.to_bytes(_TEXT_BYTES)))
