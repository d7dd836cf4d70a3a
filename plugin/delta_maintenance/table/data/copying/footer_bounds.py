"""Column statistics from the footers of data files, if a footer is exact.

Footers are not used for INT96, whose order is undefined, and for lists and maps, because footers do
not count their nulls. For strings and for decimals stored as bytes, only the footers of some
writers are used. All other columns must be decoded. Implements "Per-file Statistics" for rows that
are not decoded.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_maintenance.protocol.statistics.collect import ColumnBounds
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf

_LONG = 64
"""The length in bytes from which some writers truncate strings in footers."""
_COMPLETE = ("parquet-mr version ", "parquet-cpp-arrow version ")
"""Writers whose footers contain complete strings or none."""
_EXACT = Context(prec=38)
_FLOATS = ("FLOAT", "DOUBLE")
_INTEGERS = ("INT32", "INT64")
_BYTES = ("FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY")


def bounds_of(
    leaf: StatisticsLeaf, kind: pa.DataType, chunk: pq.ColumnChunkMetaData, created_by: str
) -> ColumnBounds | None:
    """Returns the bounds of a column chunk in the footer; None if the column must be decoded.

    `kind` is the type of the column in the table and in the file. Lists and maps have no chunk of
    their own. A chunk with NaN must have no bounds (`nan_bounds`).
    """
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return None
    nulls = int(found.null_count)
    if not 0 <= nulls <= chunk.num_values:
        return None
    if not leaf.bounded or nulls == chunk.num_values:
        return ColumnBounds(nulls=nulls, kind=kind)
    if not found.has_min_max:
        return None
    least, greatest = found.min_raw, found.max_raw
    if pa.types.is_string(kind):
        return _of_texts(nulls, kind, least, greatest, created_by)
    if pa.types.is_decimal(kind) and chunk.physical_type in _BYTES:
        return _of_decimals(nulls, kind, least, greatest, created_by)
    if pa.types.is_floating(kind) and chunk.physical_type in _FLOATS:
        return _of_floats(nulls, kind, least, greatest)
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


def _of_floats(nulls: int, kind: pa.DataType, least: Any, greatest: Any) -> ColumnBounds | None:
    """Zeros need no care: in the log, each bound of zero has the safe sign."""
    if not (isinstance(least, float) and isinstance(greatest, float)):
        return None
    if math.isnan(least) or math.isnan(greatest):
        return None
    return ColumnBounds(nulls=nulls, kind=kind, least=least, greatest=greatest)


def _of_decimals(
    nulls: int, kind: pa.DataType, least: Any, greatest: Any, created_by: str
) -> ColumnBounds | None:
    """Decodes unscaled values in two's complement. Arrow hides the bounds of releases that compared
    them as unsigned bytes.
    """
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
