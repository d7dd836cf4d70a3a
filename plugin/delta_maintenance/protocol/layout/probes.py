"""How much of a table simple filters read: one value, and a range with 1% of the rows.

The values are drawn from the bounds of the files: each file holds its rows evenly between its
bounds, which is all that the log says of them. The draw is the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.layout.bounds import ColumnBounds, Keys, Numbers, order_keys

SAMPLE = 2000
"""The number of drawn values."""
_RANGE = 0.01
"""The share of the rows in a range."""
_TURN = (5**0.5 - 1) / 2
_TEXT_BYTES = 6


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
    rows = np.flatnonzero(column.known & (weights > 0))
    if not len(rows):
        return column.least.slice(0, 0)
    ends = np.cumsum(weights[rows].astype(np.float64))
    at = (np.arange(SAMPLE) + 0.5) / SAMPLE * ends[-1]
    chosen = pa.array(rows[np.minimum(np.searchsorted(ends, at), len(rows) - 1)])
    shares = (np.arange(SAMPLE) * _TURN) % 1
    kind = column.least.type
    numbers = _as_numbers(kind)
    pairs = zip(
        column.least.take(chosen).cast(numbers).to_pylist(),
        column.greatest.take(chosen).cast(numbers).to_pylist(),
        shares.tolist(),
        strict=True,
    )
    values = pa.array([_between(*pair) for pair in pairs], numbers).cast(kind)
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
    reads = _Intersections(least, greatest, size)
    width = max(1, round(len(values) * _RANGE))

    def mean(first: Keys, last: Keys) -> Reads:
        files, read = reads.between(first, last)
        return Reads(
            files=_share(float(files.mean()) + len(unskippable), count),
            bytes=_share(float(read.mean()) + int(unskippable.sum()), total),
        )

    if not len(values):
        none = Reads(_share(len(unskippable), count), _share(int(unskippable.sum()), total))
        return Probes(none, none)
    # Every other value, because the borders of planned files are drawn values too.
    starts = np.arange(0, max(1, len(values) - width), 2)
    return Probes(
        point=mean(values[::2], values[::2]),
        range=mean(values[starts], values[np.minimum(starts + width, len(values) - 1)]),
    )


def mean_depth(columns: Sequence[ColumnBounds], weights: Numbers, samples: int = 128) -> float:
    """Returns the mean number of files that may contain a combination of values of all columns.

    The combinations are drawn as values of one file each.
    """
    known = np.logical_and.reduce([column.known for column in columns])
    rows = np.flatnonzero(known & (weights > 0))
    if not len(rows):
        return 0.0
    ends = np.cumsum(weights[rows].astype(np.float64))
    at = (np.arange(samples) + 0.5) / samples * ends[-1]
    chosen = np.minimum(np.searchsorted(ends, at), len(rows) - 1)
    keys = [
        order_keys(column.least.take(pa.array(rows)), column.greatest.take(pa.array(rows)))
        for column in columns
    ]
    depth = 0
    for number, row in enumerate(chosen.tolist()):
        covers = np.ones(len(rows), np.bool_)
        for turn, (least, greatest) in enumerate(keys):
            share = (number * _TURN + turn * _TURN / len(keys)) % 1
            value = least[row] + share * (float(greatest[row]) - float(least[row]))
            covers &= (least <= value) & (value <= greatest)
        depth += int(np.count_nonzero(covers))
    return depth / samples


class _Intersections:
    """Counts the files that intersect a range, from their sorted ends."""

    def __init__(self, least: Keys, greatest: Keys, size: Numbers) -> None:
        self._ends = [self._sorted(ends, size) for ends in (least, greatest)]

    def between(self, first: Keys, last: Keys) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns number and bytes of the files that intersect each range."""
        (lower, below), (upper, above) = self._ends
        begun = np.searchsorted(lower, last, side="right")
        ended = np.searchsorted(upper, first, side="left")
        return begun - ended, below[begun] - above[ended]

    @staticmethod
    def _sorted(ends: Keys, size: Numbers) -> tuple[Keys, Numbers]:
        order = np.argsort(ends, kind="stable")
        return ends[order], np.concatenate([[0], np.cumsum(size[order])])


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
