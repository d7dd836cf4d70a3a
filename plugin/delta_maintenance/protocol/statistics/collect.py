"""The statistics of a data file, computed from the rows that are written to it.

Implements "Per-file Statistics" for writers. Bounds are computed from the values, not taken from a
Parquet footer, because engines differ for NaN, decimals and long strings. A bound that a reader
could interpret as tighter than it is, is omitted, such as a maximum beside NaN.

The Arrow data sets of `deltalake` skip a file if one column lacks a bound and another has one.
So a file states minima, or maxima, of all columns with values or of none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.as_json import render_objects
from delta_maintenance.protocol.statistics.columns import StatisticsColumns, StatisticsLeaf

PREFIX = 32
"""The number of characters that a bound of a string keeps."""
_LONGEST_MAXIMUM = 64
_LAST_ASCII, _LAST = "\x7f", "\U0010ffff"
_FIRST_DAY = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_DAY_MICROS = timedelta(days=1) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """The statistics of one column for some rows."""

    nulls: int
    kind: pa.DataType
    least: Any = None
    """Days, microseconds, UTF-8 bytes, numbers or decimals; None if there are no values but null
    and NaN.
    """
    greatest: Any = None
    has_nan: bool = False

    def joined(self, addend: ColumnStatistics) -> ColumnStatistics:
        """Returns the statistics for the rows of both."""
        bounded = self
        if self.least is None or addend.least is None:
            bounded = addend if self.least is None else self
            lowest, highest = bounded.least, bounded.greatest
        else:
            lowest, highest = min(self.least, addend.least), max(self.greatest, addend.greatest)
        return ColumnStatistics(
            nulls=self.nulls + addend.nulls,
            kind=bounded.kind,
            least=lowest,
            greatest=highest,
            has_nan=self.has_nan or addend.has_nan,
        )

    def render(self, *, greatest: bool) -> Any:
        """Returns a bound as `stats` contains it, in the form of `least`, but texts as strings.

        None if there is no value, or no bound that all readers understand.
        """
        value, kind = self.greatest if greatest else self.least, self.kind
        if pa.types.is_floating(kind):
            if self.has_nan and greatest:
                # Readers disagree about the order of NaN.
                return None
            if value is None:
                return math.nan if self.has_nan else None
            # Positive and negative zero are equal, so each bound uses the safe sign.
            return value if value else (0.0 if greatest else -0.0)
        if value is None:
            return None
        if pa.types.is_string(kind):
            try:
                text = value.decode()
            except UnicodeDecodeError:
                return None
            return text_maximum(text) if greatest else text_minimum(text)
        if pa.types.is_date(kind):
            return value if _FIRST_DAY <= value <= _LAST_DAY else None
        if pa.types.is_timestamp(kind):
            # Both bounds are truncated: readers know that the maximum can be up to a millisecond
            # later.
            usual = _FIRST_DAY <= value // _DAY_MICROS <= _LAST_DAY
            return value // 1000 * 1000 if usual else None
        return value


class StatisticsCollector:
    """Collects the statistics of one file while its rows are written."""

    def __init__(self, columns: StatisticsColumns, schema: pa.Schema) -> None:
        """`schema` is the schema of the batches; dictionaries count as their values."""
        self._columns = columns
        self._leaves = [_Leaf(leaf, _positions(schema, leaf.path)) for leaf in columns.leaves]
        self._by_path = {leaf.path: leaf for leaf in self._leaves}
        self.rows = 0

    def offer(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds rows. A few large batches cost much less than many small ones."""
        self.rows += batch.num_rows
        fields = _Fields(batch)
        for leaf in self._leaves:
            leaf.offer(
                batch.num_rows, None if leaf.positions is None else fields.at(leaf.positions)
            )

    def offer_bounds(self, path: Sequence[str], bounds: ColumnStatistics) -> None:
        """Adds statistics of one column for some rows, without the rows."""
        self._by_path[tuple(path)].take_in(bounds)

    def add(self, addend: StatisticsCollector) -> None:
        """Adds the columns of another collector, which has processed other rows."""
        for leaf in addend._leaves:
            self._by_path[leaf.path].add(leaf)

    def bounds(self, path: Sequence[str]) -> ColumnStatistics:
        """Returns the statistics of one column."""
        return self._by_path[tuple(path)].found

    def render(self, *, all_bounds: bool = False) -> str:
        """Returns the JSON text of `stats`.

        With `all_bounds`, it has all bounds that are known, also if others cannot be stated.
        """
        texts = [f'{{"numRecords":{self.rows}']
        bounds = [
            (leaf.path, leaf.bounds())
            for leaf in self._leaves
            if leaf.leaf.bounded and leaf.nulls < self.rows
        ]
        for name, text in zip(
            ("minValues", "maxValues"), _bounds_texts(bounds, all_bounds=all_bounds), strict=True
        ):
            texts += [] if text is None else [f'"{name}":{text}']
        counts: dict[str, Any] = {}
        for leaf in self._leaves:
            parent = counts
            for name in leaf.path[:-1]:
                parent = parent.setdefault(name, {})
            parent[leaf.path[-1]] = leaf.nulls
        if counts:
            rendered = json.dumps(counts, ensure_ascii=False, separators=(",", ":"))
            texts.append(f'"nullCount":{rendered}')
        if self._columns.tight_bounds:
            texts.append('"tightBounds":true')
        return ",".join(texts) + "}"


def text_minimum(text: str) -> str:
    """Returns a lower bound of a string, with at most 32 characters."""
    return text[:PREFIX]


def text_maximum(text: str) -> str | None:
    """Returns an upper bound of a string in the order of UTF-8 bytes; None if no short one exists.

    Truncates like Delta Spark: 32 UTF-16 code units, followed by a character greater than the one
    that it replaces.
    """
    length = units = 0
    while length < len(text) and units + _units(text[length]) <= PREFIX:
        units += _units(text[length])
        length += 1
    if length == len(text):
        return text
    while length < len(text) and text[length] == _LAST:
        units += 2
        length += 1
        if units > _LONGEST_MAXIMUM:
            return None
    if length == len(text):
        return text
    return text[:length] + (_LAST_ASCII if text[length] < _LAST_ASCII else _LAST)


class _Fields:
    """The fields of a batch at any depth. A struct is divided once, because Arrow visits all of its
    fields to take one.
    """

    def __init__(self, batch: pa.RecordBatch | pa.Table) -> None:
        self._by_struct: dict[tuple[int, ...], Sequence[pa.Array | pa.ChunkedArray]] = {
            (): batch.columns
        }

    def at(self, positions: tuple[int, ...]) -> pa.Array | pa.ChunkedArray:
        """Returns the values at a path of field indices, null where a struct above is null."""
        struct = positions[:-1]
        if struct not in self._by_struct:
            self._by_struct[struct] = self.at(struct).flatten()
        return self._by_struct[struct][positions[-1]]


@dataclass(slots=True)
class _Leaf:
    leaf: StatisticsLeaf
    positions: tuple[int, ...] | None
    """The path of the column in the batches, as field indices from the outermost struct; None if it
    is missing.
    """
    nulls: int = 0
    least: Any = None
    greatest: Any = None
    kind: pa.DataType | None = None
    has_nan: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return self.leaf.path

    def offer(self, rows: int, values: pa.Array | pa.ChunkedArray | None) -> None:
        if values is None:
            self.nulls += rows
            return
        self.nulls += values.null_count
        if not self.leaf.bounded or values.null_count == len(values):
            return
        if pa.types.is_dictionary(values.type):
            # Some dictionary entries may belong to deleted rows.
            values = pc.unique(values).drop_null().dictionary_decode()
        self.kind = values.type
        values = _comparable(values)
        if pa.types.is_floating(values.type):
            for chunk in getattr(values, "chunks", [values]):
                self._offer_numbers(chunk)
            return
        extremes = pc.min_max(values)
        self._extend(extremes["min"].as_py(), extremes["max"].as_py())

    def _offer_numbers(self, values: pa.Array) -> None:
        """Takes in floating point numbers, among which there can be NaN."""
        if not values.null_count and len(values):
            # The extremes of NumPy are NaN where one of the values is. Arrow takes three passes.
            word = np.dtype(np.float64 if values.type.bit_width == 64 else np.float32)
            start = values.offset * word.itemsize
            numbers = np.frombuffer(values.buffers()[1], word, len(values), start)
            lowest, highest = float(numbers.min()), float(numbers.max())
            if not math.isnan(lowest):
                self._extend(lowest, highest)
                return
        is_nan = pc.is_nan(values)
        if pc.any(is_nan).as_py():
            self.has_nan = True
            values = values.filter(pc.invert(is_nan))
        extremes = pc.min_max(values)
        self._extend(extremes["min"].as_py(), extremes["max"].as_py())

    def take_in(self, bounds: ColumnStatistics) -> None:
        self.nulls += bounds.nulls
        self.kind = bounds.kind
        self.has_nan = self.has_nan or bounds.has_nan
        self._extend(bounds.least, bounds.greatest)

    def add(self, addend: _Leaf) -> None:
        """Adds the statistics of other rows."""
        self.nulls += addend.nulls
        self.kind = self.kind or addend.kind
        self.has_nan = self.has_nan or addend.has_nan
        self._extend(addend.least, addend.greatest)

    def _extend(self, lowest: Any, highest: Any) -> None:
        if lowest is not None:
            self.least = lowest if self.least is None else min(self.least, lowest)
            self.greatest = highest if self.greatest is None else max(self.greatest, highest)

    @property
    def found(self) -> ColumnStatistics:
        kind = pa.null() if self.kind is None else self.kind
        return ColumnStatistics(
            nulls=self.nulls,
            kind=kind,
            least=self.least,
            greatest=self.greatest,
            has_nan=self.has_nan,
        )

    def bounds(self) -> pa.Array:
        """Returns both bounds for the statistics, null for one that must be omitted."""
        known = self.found
        return bound_array([known.render(greatest=of) for of in (False, True)], known.kind)


def bound_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Returns bounds of `ColumnStatistics.stated` as values of a column of type `kind`.

    All digits of a floating-point number are kept: some readers compare floats as doubles, and
    fewer digits would be another number.
    """
    if pa.types.is_floating(kind):
        return pa.array(values, pa.float64())
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)


def _comparable(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Converts values to a form in which Python can represent and compare their extremes."""
    kind = values.type
    if pa.types.is_string(kind):
        return values.cast(pa.binary())
    if pa.types.is_date(kind):
        return _view_values(values, pa.int32())
    return _view_values(values, pa.int64()) if pa.types.is_timestamp(kind) else values


def _view_values(
    values: pa.Array | pa.ChunkedArray, kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([chunk.view(kind) for chunk in values.chunks], kind)
    return values.view(kind)


def _units(char: str) -> int:
    return 2 if char > "\uffff" else 1


def _positions(schema: pa.Schema, path: Sequence[str]) -> tuple[int, ...] | None:
    at = schema.get_field_index(path[0])
    if at < 0:
        return None
    positions, kind = [at], schema.field(at).type
    for name in path[1:]:
        inner = kind.get_field_index(name)
        if inner < 0:
            return None
        positions.append(inner)
        kind = kind.field(inner).type
    return tuple(positions)


def _bounds_texts(
    bounds: Sequence[tuple[tuple[str, ...], pa.Array]], *, all_bounds: bool
) -> Sequence[str | None]:
    """Returns the objects of all lower and of all upper bounds; None for one that must be omitted.

    With `all_bounds`, an object may lack some.
    """
    if bounds and not any(pair.null_count for _, pair in bounds):
        # Both at once, because each text costs many calls.
        rendered: list[str] = render_objects(_struct(bounds)).to_pylist()
        return rendered
    texts: list[str | None] = []
    for at in (0, 1):
        stated = [(path, pair.slice(at, 1)) for path, pair in bounds if pair[at].is_valid]
        is_stated = stated and (all_bounds or len(stated) == len(bounds))
        texts.append(render_objects(_struct(stated))[0].as_py() if is_stated else None)
    return texts


def _struct(leaves: Sequence[tuple[tuple[str, ...], pa.Array]]) -> pa.StructArray:
    """Returns the rows of the leaves, nested by their paths."""
    groups: dict[str, list[tuple[tuple[str, ...], pa.Array]]] = {}
    for path, value in leaves:
        groups.setdefault(path[0], []).append((path[1:], value))
    children = [
        members[0][1] if not members[0][0] else _struct(members) for members in groups.values()
    ]
    return pa.StructArray.from_arrays(children, names=list(groups))
