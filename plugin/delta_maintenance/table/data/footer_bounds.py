"""The statistics of columns from the footers of data files, where a footer is exact.

Footers are not believed for floating point numbers, because writers differ in NaN; for INT96, whose
order is not defined; and for lists and maps, whose nulls a footer does not count. For texts and for
decimals in bytes, only some writers are believed. Other columns are to be decoded. Implements
"Per-file Statistics" for rows that are not decoded.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.statistics.collect import ColumnBounds
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf

_LONG = 64
"""Bytes from which on some writers cut texts in footers."""
_COMPLETE = ("parquet-mr version ", "parquet-cpp-arrow version ")
"""Writers whose footers hold complete texts, or none."""
_EXACT = Context(prec=38)
_INTEGERS = ("INT32", "INT64")
_BYTES = ("FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY")


def bounds_of(
    leaf: StatisticsLeaf, kind: pa.DataType, chunk: pq.ColumnChunkMetaData, created_by: str
) -> ColumnBounds | None:
    """What a footer says of a column chunk, None where the column has to be decoded.

    `kind` is the type of the column in the table, which is also that in the file. Columns of lists
    and maps have no chunk of their own.
    """
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return None
    nulls = int(found.null_count)
    if not leaf.bounded or nulls == chunk.num_values:
        return ColumnBounds(nulls=nulls, kind=kind)
    if not found.has_min_max:
        return None
    least, greatest = found.min_raw, found.max_raw
    if pa.types.is_string(kind):
        return _of_texts(nulls, kind, least, greatest, created_by)
    if pa.types.is_decimal(kind) and chunk.physical_type in _BYTES:
        return _of_decimals(nulls, kind, least, greatest, created_by)
    integers = isinstance(least, int) and isinstance(greatest, int)
    if chunk.physical_type not in _INTEGERS or not integers:
        return None
    if pa.types.is_decimal(kind):
        least, greatest = (_decimal(value, kind.scale) for value in (least, greatest))
    elif not _is_integral(kind):
        return None
    return ColumnBounds(nulls=nulls, kind=kind, least=least, greatest=greatest)


def _of_texts(
    nulls: int, kind: pa.DataType, least: Any, greatest: Any, created_by: str
) -> ColumnBounds | None:
    values = [value.encode() if isinstance(value, str) else value for value in (least, greatest)]
    if not all(isinstance(value, bytes) and len(value) < _LONG for value in values):
        return None
    if not created_by.startswith(_COMPLETE):
        return None
    return ColumnBounds(nulls=nulls, kind=kind, least=values[0], greatest=values[1])


def _of_decimals(
    nulls: int, kind: pa.DataType, least: Any, greatest: Any, created_by: str
) -> ColumnBounds | None:
    """Unscaled values in two's complement. Arrow hides those of releases that ordered them as bytes
    without a sign."""
    if not (isinstance(least, bytes) and isinstance(greatest, bytes)):
        return None
    if not created_by.startswith(_COMPLETE):
        return None
    values = [
        _decimal(int.from_bytes(raw, "big", signed=True), kind.scale) for raw in (least, greatest)
    ]
    if values[0] > values[1]:
        return None
    return ColumnBounds(nulls=nulls, kind=kind, least=values[0], greatest=values[1])


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def _is_integral(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    )
