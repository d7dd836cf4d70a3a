"""Which files have only rows, some rows or no rows with values less than a limit.

Implements the reading side of "Per-file Statistics" for deleting whole files, where a wrong answer
loses rows: bounds only count where they prove that every row is less than the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns.arrays import to_bools
from delta_maintenance.protocol.layout.bounds import ColumnBounds, Mask, Numbers
from delta_maintenance.protocol.schema.types import DeltaType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_SURE = {
    # Writers with the hybrid calendar of Spark 2 state other days before.
    "date": (datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH).days,
    "timestamp_ntz": int((datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000,
    # Bounds can be local times with an offset in whole minutes. Until 1972 some offsets were not.
    "timestamp": int((datetime(1973, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """A judgement on each file. Files in no mask have no row that is less than the limit."""

    whole: Mask
    """All rows are less."""
    mixed: Mask
    """Some rows may be less, and others, or nulls, are not."""
    unknown: Mask
    """The log does not prove anything."""


def ages(column: ColumnBounds, limit: int | Numbers) -> Ages:
    """Judges files by the bounds of a column of dates, timestamps or integers.

    `limit` is in the unit of the column, days or microseconds since 1970, or a limit for each file.
    A null is never less.
    """
    least, greatest = numbers(column.least), numbers(column.greatest)
    low, high = to_bools(pc.is_valid(column.least)), to_bools(pc.is_valid(column.greatest))
    if column.is_partition:
        whole = high & (greatest < limit)
        none: Mask = np.zeros(len(whole), np.bool_)
        return Ages(whole=whole, mixed=none, unknown=none)
    # Bounds that contradict each other prove nothing.
    sound = ~(low & high & (least > greatest))
    some = ~column.all_null & ~(sound & low & (least >= limit))
    sure = _FIRST_SURE.get(str(column.kind))
    below = sound & high & (greatest < limit)
    if sure is not None:
        below &= greatest >= sure
    whole = some & below & (column.nulls == 0)
    known = sound & low & high & (column.nulls >= 0)
    return Ages(whole=whole, mixed=some & ~whole & known, unknown=some & ~whole & ~known)


def has_ages(kind: DeltaType) -> bool:
    """Whether values of a type are instants, times or days."""
    return str(kind) in _FIRST_SURE


def numbers(values: pa.Array) -> Numbers:
    """Returns dates as days, timestamps as microseconds, and integers as they are; 0 for nulls."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    found: Numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return found
