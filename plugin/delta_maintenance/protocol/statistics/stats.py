"""Per-file statistics: row counts, their type in checkpoints, and conversions.

Implements "Per-file Statistics" and the `stats_parsed` part of "Checkpoint Schema". The statistics
of a file are JSON text in `stats`, columns in `stats_parsed`, or both. A checkpoint that writes the
form it lacks converts the other one, and checks `ConvertedStatistics.lost` before it drops that.

Most writers begin the statistics of a file with `{"numRecords":N`. For such texts the number is
taken from the bytes of the column; every other text is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import booleans, integers, to_bools
from delta_maintenance.protocol.schema.types import (
    ColumnMappingMode,
    DeltaType,
    StructType,
    has_bounds,
    physical_schema,
    to_arrow_type,
)
from delta_maintenance.protocol.statistics.as_json import Path, num_records


def statistics_arrow_type(
    schema: StructType,
    *,
    partition_columns: Iterable[str],
    mode: ColumnMappingMode,
    tight_bounds: bool,
) -> pa.StructType:
    """The type of `stats_parsed` for a table, by physical names, without partition columns.

    Bounds have a leaf for each numeric, boolean, date, timestamp and string column, null counts one
    for each column that is not a struct. Parts without leaves are omitted, because Parquet has no
    empty structs. Raises `CorruptTableError` if columns are mapped and one has no physical name.
    """
    columns = _data_columns(schema, partition_columns, mode)
    bounds = _struct_of(columns, lambda kind: to_arrow_type(kind) if has_bounds(kind) else None)
    null_count = _struct_of(columns, lambda _: pa.int64())
    fields: list[tuple[str, pa.DataType | None]] = [
        ("numRecords", pa.int64()),
        ("minValues", bounds),
        ("maxValues", bounds),
        ("nullCount", null_count),
        ("tightBounds", pa.bool_() if tight_bounds else None),
    ]
    return pa.struct([(name, kind) for name, kind in fields if kind is not None])


def selected_statistics(
    bounds: Mapping[Path, pa.DataType], counted: Iterable[Path]
) -> pa.StructType:
    """The type of the statistics of some columns only, by physical names."""
    least = _nest(bounds)
    nulls = _nest(dict.fromkeys(counted, pa.int64()))
    fields = [("numRecords", pa.int64()), ("minValues", least), ("maxValues", least)]
    return pa.struct([*fields, ("nullCount", nulls)])


def _nest(leaves: Mapping[Path, pa.DataType]) -> pa.StructType:
    groups: dict[str, dict[Path, pa.DataType]] = {}
    for path, kind in leaves.items():
        groups.setdefault(path[0], {})[path[1:]] = kind
    return pa.struct(
        [
            (name, members[()] if () in members else _nest(members))
            for name, members in groups.items()
        ]
    )


def _data_columns(
    schema: StructType, partition_columns: Iterable[str], mode: ColumnMappingMode
) -> StructType:
    partitioning = {name.lower() for name in partition_columns}
    data = tuple(column for column in schema.fields if column.name.lower() not in partitioning)
    return physical_schema(StructType(fields=data), mode)


def _struct_of(
    struct: StructType, leaf_type: Callable[[DeltaType], pa.DataType | None]
) -> pa.StructType | None:
    """The struct of the leaves that have a type; None if there are none."""
    leaves = []
    for column in struct.fields:
        if isinstance(column.type, StructType):
            kind = _struct_of(column.type, leaf_type)
        else:
            kind = leaf_type(column.type)
        if kind is not None:
            leaves.append(pa.field(column.name, kind))
    return pa.struct(leaves) if leaves else None


_PREFIX = b'{"numRecords":'
_FIRST, _LAST = (np.uint64(int.from_bytes(w, "little")) for w in (_PREFIX[:8], _PREFIX[-8:]))
_MOST_DIGITS = 9
"""Each digit costs time in every row; texts with more are parsed."""
_HEAD = len(_PREFIX) + _MOST_DIGITS + 2
"""The number of bytes at the beginning of a text that are parsed."""
_ZERO, _NINE, _COMMA, _QUOTE, _CLOSE = (ord(each) for each in '09,"}')


def stated_row_counts(stats: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns `numRecords` of each row's JSON statistics as int64, null if there is no count.

    Equals `num_records` for JSON without repeated keys. Only the beginning of a text is parsed, so
    a text that is damaged after its count has a count here, and null in `num_records`. Use it for
    listings and totals, not for decisions.
    """
    return pa.chunked_array([_counts(chunk) for chunk in stats.chunks], pa.int64())


def _counts(texts: pa.StringArray) -> pa.Array:
    values, certain = _leading_counts(texts)
    valid = texts.is_valid()
    certain |= ~to_bools(valid)
    counts = pc.if_else(valid, integers(values), pa.scalar(None, pa.int64()))
    if certain.all():
        return counts
    return _replace_counts(counts, certain, num_records(texts.filter(booleans(~certain))))


def _replace_counts(counts: pa.Array, certain: npt.NDArray[np.bool_], parsed: pa.Array) -> pa.Array:
    """The counts, with those of uncertain rows from `parsed`, which has one for each of them."""
    rows = np.arange(len(counts))
    rows[~certain] = len(counts) + np.arange(len(parsed))
    return pa.concat_arrays([counts, parsed]).take(integers(rows))


def _leading_counts(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Returns the count at the beginning of each text, and whether it is certain.

    The last texts are not certain if the buffer ends before the end of the parsed prefix.
    """
    rows = len(texts)
    nothing = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    _, offsets, data = texts.buffers()
    if data is None or offsets is None or data.size < _HEAD:
        return nothing
    width_of = np.dtype(np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    ends = np.frombuffer(offsets, width_of, rows + 1, texts.offset * width_of.itemsize)
    text = np.frombuffer(data, np.uint8)
    starts, ends = ends[:-1], ends[1:]
    # A view of the bytes from each position on, of which only the beginnings of the texts are
    # copied.
    heads = np.ndarray((len(text) - _HEAD + 1,), np.dtype(f"V{_HEAD}"), text, strides=(1,))
    there = starts < len(heads)
    head = heads[np.where(there, starts, 0)].view(np.uint8).reshape(rows, _HEAD)
    begins = there & (ends - starts > len(_PREFIX))
    # Two words that overlap.
    begins &= head[:, :8].copy().view("<u8")[:, 0] == _FIRST
    begins &= head[:, len(_PREFIX) - 8 : len(_PREFIX)].copy().view("<u8")[:, 0] == _LAST
    digits = head[:, len(_PREFIX) :]
    is_digit = (digits >= _ZERO) & (digits <= _NINE)
    width = np.argmin(is_digit, axis=1)
    following = digits[np.arange(rows), width]
    after = digits[np.arange(rows), np.minimum(width + 1, digits.shape[1] - 1)]
    is_last = starts + len(_PREFIX) + width == ends - 1
    certain = (
        begins
        & (width > 0)
        & (width <= _MOST_DIGITS)
        & ~((width > 1) & (digits[:, 0] == _ZERO))
        & np.where(is_last, following == _CLOSE, (following == _COMMA) & (after == _QUOTE))
        & (text[np.maximum(ends - 1, 0)] == _CLOSE)
    )
    values = np.zeros(rows, np.int64)
    for at in range(int(width[certain].max(initial=0))):
        inside = at < width
        values[inside] = values[inside] * 10 + (digits[inside, at].astype(np.int64) - _ZERO)
    return values, certain
