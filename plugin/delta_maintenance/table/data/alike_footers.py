"""The statistics of data files with footers of the same form, as `FooterReader` finds them.

Only footers of writers whose statistics Arrow never hides because of their values are read
together, and only if Arrow shows for one of them what its bytes say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.parquet.footer_forms import FooterForm, FooterValues, Mask, Numbers, Place
from delta_maintenance.parquet.footer_reader import MOST_ROWS
from delta_maintenance.parquet.footers import (
    COLUMNS,
    GROUP_ROWS,
    NUM_ROWS,
    NUM_VALUES,
    ROW_GROUPS,
    STATISTICS,
    omits_bounds_of_nan,
)
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf
from delta_maintenance.table.data.copying.proof import bounds_of, is_integral

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
        nulls = values.numbers((*chunk, STATISTICS, _NULLS))
        numbers = values.numbers((*chunk, NUM_VALUES))
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
        numbers = values.numbers(place)
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
        return [text == b"\x01" for text in values.texts(place)]
    kind = _NUMBERS.get(physical)
    return values.texts(place) if kind is None else values.fixed(place, kind).tolist()


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
