"""The footers of many files at once that one writer wrote for one schema, and their statistics.

Such footers have the same form: the same fields in the same order, with other numbers and bounds.
The form is derived from one footer that pyarrow and `require_readable_columns` accept. The others
are compared with it step by step, each step in all footers at the same time. A footer of another
form is found out, and must be read alone.

Only footers of writers whose statistics Arrow never hides because of their values are read
together, and only if Arrow shows for one of them what its bytes say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.table.data.copying.proof import bounds_of, is_integral
from delta_maintenance.table.data.parquet.footer_reader import MOST_ROWS
from delta_maintenance.table.data.parquet.footers import (
    CHUNK_METADATA,
    COLUMNS,
    GROUP_ROWS,
    NUM_ROWS,
    NUM_VALUES,
    ROW_GROUPS,
    STATISTICS,
    omits_bounds_of_nan,
)
from delta_maintenance.table.data.parquet.thrift import (
    BINARY,
    BYTE,
    FALSE,
    FIXED,
    I16,
    I64,
    LIST,
    SET,
    STOP,
    STRUCT,
    TRUE,
    MalformedThriftError,
    field_head,
    list_head,
    skip,
    varint,
)

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Place = tuple[int, ...]
"""A value in a footer: the numbers of the fields, and the position after that of each list."""

_CHUNK = ROW_GROUPS, COLUMNS, CHUNK_METADATA
_TYPE, _PATH, _CODEC = 1, 3, 4
_EQUAL = {(number,) for number in (1, 2, 5, 6, 7)} | {
    (*_CHUNK, number) for number in (_TYPE, _PATH, _CODEC)
}
"""Fields with the same value in all footers of a form: the schema, the texts of the file, and the
type, the name and the codec of each column.
"""
_BOUNDS = {(*_CHUNK, STATISTICS, number) for number in (1, 2, 5, 6)}
_BYTE_ARRAY = 6
_MOST_BITS = 63
_MOST_DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterValues:
    """The varying values of the footers of a form, among some footers."""

    matched: Mask
    """Which footers have the form."""
    data: Bytes
    """The bytes of all footers, with a few more after them."""
    starts: Mapping[Place, Numbers]
    """The positions of each value in the bytes, one for each footer of the form."""
    sizes: Mapping[Place, Numbers]
    """The lengths of each text."""

    @property
    def count(self) -> int:
        """The number of footers of the form."""
        return int(self.matched.sum())

    def read_numbers(self, place: Place) -> Numbers | None:
        """Returns an integer of each footer; None if they have none."""
        if place not in self.starts:
            return None
        at, shift = self.starts[place].copy(), 0
        value = np.zeros(len(at), np.int64)
        continues = np.ones(len(at), np.bool_)
        while continues.any():
            byte = self.data[at].astype(np.int64)
            value |= np.where(continues, (byte & 127) << shift, 0)
            continues &= byte > 127
            at += 1
            shift += 7
        return (value >> 1) ^ -(value & 1)

    def read_fixed(self, place: Place, kind: str) -> npt.NDArray[np.generic]:
        """Returns a text of each footer as a number of a fixed size, such as `<i4`."""
        target = np.dtype(kind)
        at = self.starts[place][:, None] + np.arange(target.itemsize)
        return np.ascontiguousarray(self.data[at]).view(target).ravel()

    def read_texts(self, place: Place) -> list[bytes]:
        """Returns a text of each footer."""
        data, starts = self.data.data, self.starts[place]
        ends = (starts + self.sizes[place]).tolist()
        return [bytes(data[at:end]) for at, end in zip(starts.tolist(), ends, strict=True)]


@dataclass(slots=True)
class FooterForm:
    """The form of footers, as steps over their bytes."""

    _size: int
    _steps: list[tuple[str, Bytes | int, Place]] = field(default_factory=list)
    """What follows: certain bytes, a varint, a text with its length, or some bytes of any value."""
    _pending: bytes = b""
    _has_texts: bool = True
    """Whether the bounds of the column may have any length."""

    @classmethod
    def of(cls, footer: bytes) -> Self | None:
        """Returns the form of a valid footer; None for one that no writer is known to write."""
        form = cls(len(footer))
        try:
            end = form._fields(footer, 0, (), (), _MOST_DEPTH)
        except (IndexError, MalformedThriftError):
            return None
        form._equal(b"")
        return form if end == len(footer) else None

    def read(self, footers: Sequence[bytes]) -> FooterValues:
        """Compares footers with the form, and locates their values."""
        lengths = np.array([len(footer) for footer in footers], np.int64)
        ends = np.cumsum(lengths)
        # After the last byte, no step reaches further than the size of this form.
        data = np.frombuffer(b"".join([*footers, bytes(self._size + 16)]), np.uint8)
        data_end = int(ends[-1])
        after = np.arange(1, len(data) + 1, dtype=np.int32)
        # The end of a varint is after its first byte below 128.
        after[data > 127] = len(data)
        after = np.minimum.accumulate(after[::-1])[::-1]
        at = ends - lengths
        matched = np.ones(len(footers), np.bool_)
        starts: dict[Place, Numbers] = {}
        sizes: dict[Place, Numbers] = {}
        for kind, step, place in self._steps:
            if isinstance(step, np.ndarray):
                if len(step) == 1:
                    matched &= data[at] == step[0]
                else:
                    matched &= (data[at[:, None] + np.arange(len(step))] == step).all(axis=1)
                at = at + len(step)
                continue
            starts[place] = at
            if kind == "number":
                end = after[at]
                matched &= end - at <= _MOST_BITS // 7
                at = np.minimum(end, data_end).astype(np.int64)
                continue
            length = np.full(len(at), step)
            if kind == "text":
                # A longer one, of three bytes, is one of another form.
                low_byte, high_byte = data[at].astype(np.int64), data[at + 1].astype(np.int64)
                is_long = low_byte > 127
                matched &= ~is_long | (high_byte < 128)
                length = np.where(is_long, (low_byte & 127) | (high_byte << 7), low_byte)
                starts[place] = at = at + 1 + is_long
            sizes[place] = length
            at = np.minimum(at + length, data_end)
        matched &= at == ends
        return FooterValues(
            matched=matched,
            data=data,
            starts={place: footer[matched] for place, footer in starts.items()},
            sizes={place: footer[matched] for place, footer in sizes.items()},
        )

    def _equal(self, constant: bytes) -> None:
        """Adds bytes that are the same in all footers; without any, ends those before."""
        if not constant and self._pending:
            self._steps.append(("equal", np.frombuffer(self._pending, np.uint8), ()))
            self._pending = b""
        self._pending += constant

    def _step(self, kind: str, place: Place, size: int = 0) -> None:
        self._equal(b"")
        self._steps.append((kind, size, place))

    def _fields(self, data: bytes, at: int, path: Place, place: Place, depth: int) -> int:
        """Returns the position after a struct. `path` are the numbers of the fields alone."""
        if not depth:
            raise MalformedThriftError("values are nested too deeply")
        number = 0
        while data[at] != STOP:
            start = at
            number, kind, at = field_head(data, at, number)
            self._equal(data[start:at])
            inner = (*path, number)
            if inner == (*_CHUNK, _TYPE):
                self._has_texts = data[at] == _BYTE_ARRAY << 1
            if inner in _EQUAL:
                end = skip(data, at, kind)
                self._equal(data[at:end])
                at = end
            elif kind in (TRUE, FALSE):
                continue
            else:
                at = self._value(data, at, kind, inner, (*place, number), depth)
        self._equal(data[at : at + 1])
        return at + 1

    def _value(self, data: bytes, at: int, kind: int, path: Place, place: Place, depth: int) -> int:
        if kind == STRUCT:
            return self._fields(data, at, path, place, depth - 1)
        if kind in (LIST, SET):
            count, element, after = list_head(data, at)
            self._equal(data[at:after])
            for number in range(count):
                after = self._value(data, after, element, path, (*place, number), depth - 1)
            return after
        if I16 <= kind <= I64:
            self._step("number", place)
            return varint(data, at)[1]
        if kind == BINARY:
            length, after = varint(data, at)
            if path in _BOUNDS and not self._has_texts:
                # The type decides the size.
                self._equal(data[at:after])
                self._step("bytes", place, length)
            elif path in _BOUNDS:
                self._step("text", place)
            else:
                self._equal(data[at : after + length])
            return after + length
        size = FIXED.get(kind, 1 if kind in (BYTE, TRUE, FALSE) else 0)
        if not size:
            raise MalformedThriftError("no writer is known to use this type")
        self._step("bytes", place, size)
        return at + size


_NULLS = 3
_PAIRS = ((6, 5), (2, 1))
"""The fields of a minimum and a maximum, in the new and the old form."""
_NUMBERS = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8"}
_UNCONDITIONAL = re.compile(
    r"parquet-mr version 1\.1[0-9]\.|parquet-cpp-arrow version |parquet-rs "
)


@dataclass(frozen=True, slots=True)
class FooterColumn:
    """A column of the table in files with one schema."""

    leaf: StatisticsLeaf
    kind: pa.DataType
    at: int | None
    """The number of the leaf in the file; None if its footers cannot be used."""
    is_stored: bool
    """Whether the file contains the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What `bounds_of` asks about a column chunk and its statistics."""

    num_values: int
    null_count: int
    physical_type: str
    min_raw: Any
    max_raw: Any
    has_min_max: bool
    has_null_count: bool = True

    @property
    def statistics(self) -> Self:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeFooters:
    """Footers of one form, in files of one table."""

    created_by: str
    _form: FooterForm
    _columns: Sequence[FooterColumn]
    _types: Sequence[str]
    """The physical type of each leaf of the file."""
    _groups: int

    @classmethod
    def like(
        cls, footer: bytes, metadata: pq.FileMetaData, columns: Sequence[FooterColumn]
    ) -> Self | None:
        """Returns the form of a footer that Arrow has decoded; None if it must be read alone."""
        created_by = metadata.created_by or ""
        form = FooterForm.of(footer) if _UNCONDITIONAL.match(created_by) else None
        if form is None:
            return None
        types = [metadata.schema.column(at).physical_type for at in range(len(metadata.schema))]
        alike = cls(
            created_by=created_by,
            _form=form,
            _columns=columns,
            _types=types,
            _groups=metadata.num_row_groups,
        )
        return alike if alike._says_what_arrow_says(metadata, form.read([footer])) else None

    def read(
        self, footers: Sequence[bytes]
    ) -> tuple[Mask, list[int], list[tuple[ColumnStatistics | None, ...]]]:
        """Returns which footers have this form, and the rows and the bounds of each of these.

        The number of rows is -1 if a footer contradicts itself.
        """
        values = self._form.read(footers)
        rows = self._number(values, (NUM_ROWS,))
        groups = [self._number(values, (ROW_GROUPS, at, GROUP_ROWS)) for at in range(self._groups)]
        sound = np.logical_and.reduce(
            [rows >= 0, rows <= MOST_ROWS, *(group_values >= 0 for group_values in groups)]
        )
        total = sum(groups, np.zeros(len(rows), np.int64))
        rows = np.where(sound & (total == rows), rows, -1)
        bounds = [self._bounds(values, column, rows) for column in self._columns]
        by_footer = [tuple(group_values) for group_values in zip(*bounds, strict=True)] or [
            ()
        ] * len(rows)
        counts: list[int] = rows.tolist()
        return values.matched, counts, by_footer

    def _bounds(
        self, values: FooterValues, column: FooterColumn, rows: Numbers
    ) -> list[ColumnStatistics | None]:
        kind = column.kind
        if not column.is_stored:
            return [ColumnStatistics(nulls=count, kind=kind) for count in rows.tolist()]
        total: list[ColumnStatistics | None] = [ColumnStatistics(nulls=0, kind=kind)] * len(rows)
        for group in range(self._groups if column.at is not None else 0):
            chunk_bounds = self._of_chunk(
                values, column, (ROW_GROUPS, group, COLUMNS, column.at or 0, 3)
            )
            total = (
                chunk_bounds
                if not group
                else [
                    None if bounds is None or second is None else bounds.joined(second)
                    for bounds, second in zip(total, chunk_bounds, strict=True)
                ]
            )
        return total if column.at is not None else [None] * len(rows)

    def _of_chunk(
        self, values: FooterValues, column: FooterColumn, chunk: Place
    ) -> list[ColumnStatistics | None]:
        count = values.count
        nulls = values.read_numbers((*chunk, STATISTICS, _NULLS))
        numbers = values.read_numbers((*chunk, NUM_VALUES))
        if nulls is None or numbers is None:
            return [None] * count
        leaf, kind, physical = column.leaf, column.kind, self._types[column.at or 0]
        pair = _pair(values, chunk)
        lowest, greatest = (
            ([None] * count,) * 2
            if pair is None
            else (_raw(values, place, physical) for place in pair)
        )
        possible = (nulls >= 0) & (nulls <= numbers)
        if pair and leaf.bounded and is_integral(kind) and physical in ("INT32", "INT64"):
            empty = nulls == numbers
            facts = (nulls.tolist(), possible.tolist(), empty.tolist(), lowest, greatest)
            return [
                None
                if not sound
                else ColumnStatistics(nulls=null_count, kind=kind)
                if none
                else ColumnStatistics(nulls=null_count, kind=kind, least=low, greatest=high)
                for null_count, sound, none, low, high in zip(*facts, strict=True)
            ]
        chunks = (
            _Chunk(
                num_values=all_values,
                null_count=null_count,
                physical_type=physical,
                min_raw=low,
                max_raw=high,
                has_min_max=pair is not None,
            )
            for all_values, null_count, low, high in zip(
                numbers.tolist(), nulls.tolist(), lowest, greatest, strict=True
            )
        )
        return [safe_bounds(column, statistics, self.created_by) for statistics in chunks]

    def _number(self, values: FooterValues, place: Place) -> Numbers:
        numbers = values.read_numbers(place)
        return np.full(values.count, -1) if numbers is None else numbers

    def _says_what_arrow_says(self, metadata: pq.FileMetaData, values: FooterValues) -> bool:
        if not values.matched.all():
            return False
        for group in range(self._groups):
            for column in self._columns:
                if column.at is None:
                    continue
                arrow_chunk = metadata.row_group(group).column(column.at)
                statistics = arrow_chunk.statistics
                place = (ROW_GROUPS, group, COLUMNS, column.at, 3)
                pair = _pair(values, place)
                if statistics is None or statistics.has_min_max != (pair is not None):
                    return False
                if pair is not None and column.leaf.bounded:
                    raw = [
                        _raw(values, value_place, arrow_chunk.physical_type)[0]
                        for value_place in pair
                    ]
                    if raw != [_bytes(statistics.min_raw), _bytes(statistics.max_raw)]:
                        return False
        return True


def safe_bounds(
    column: FooterColumn, chunk: pq.ColumnChunkMetaData | _Chunk, created_by: str
) -> ColumnStatistics | None:
    """Returns the bounds of a column chunk; None if the column must be decoded."""
    bounds = bounds_of(column.leaf, column.kind, chunk, created_by)
    if bounds is None or bounds.least is None or omits_bounds_of_nan(created_by):
        return bounds
    return None if pa.types.is_floating(column.kind) else bounds


def _pair(values: FooterValues, chunk: Place) -> tuple[Place, Place] | None:
    """Returns the places of the minimum and the maximum; None if there are none."""
    for lowest, greatest in _PAIRS:
        pair = (*chunk, STATISTICS, lowest), (*chunk, STATISTICS, greatest)
        if all(place in values.starts for place in pair):
            return pair
    return None


def _raw(values: FooterValues, place: Place, physical: str) -> list[Any]:
    """Returns a bound of each footer, as Arrow shows it."""
    if physical == "BOOLEAN":
        return [text == b"\x01" for text in values.read_texts(place)]
    kind = _NUMBERS.get(physical)
    return values.read_texts(place) if kind is None else values.read_fixed(place, kind).tolist()


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
