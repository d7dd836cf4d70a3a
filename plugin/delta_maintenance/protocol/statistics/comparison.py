"""Compares the statistics of files in the log with the contents of the files.

Implements the reading side of "Per-file Statistics". Statistics are wrong if a reader that relies
on them can skip rows. Writers may truncate texts, cut timestamps to milliseconds, leave out NaN,
and state bounds that are wider than the live rows of a file with a deletion vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.columns import to_bools
from delta_maintenance.protocol.statistics.audit import AuditedFiles, Mask
from delta_maintenance.protocol.statistics.bounds import may_have_cut_offset, with_cut_microseconds
from delta_maintenance.protocol.statistics.collect import ColumnStatistics
from delta_maintenance.protocol.statistics.columns import StatisticsLeaf

_MOST_DIGITS = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsComparison:
    """The statistics of one column compared with the contents of files, one element per file."""

    wrong: Mask
    """A reader can skip rows because of them, or counts other nulls."""
    loose: Mask
    """They are said to be exact, and are wider than the values of the file."""
    doubtful: Mask
    """Only the live rows show whether they are wrong."""


def compare_column(
    audited: AuditedFiles,
    leaf: StatisticsLeaf,
    contents: Sequence[ColumnStatistics | None],
    *,
    physical_rows: pa.Int64Array,
    live: bool,
) -> StatisticsComparison:
    """Compares the statistics of one column with the contents of each file, None where unknown.

    `live`: whether the contents are those of live rows, and not of all physical ones.
    """
    is_known = np.array([statistics is not None for statistics in contents], np.bool_)
    exact = is_known & (live | ~audited.has_vector)
    stated = [audited.part(name, *leaf.path) for name in ("minValues", "maxValues", "nullCount")]
    excludes, loose, cut = _compare_bounds(audited, leaf, stated[0], stated[1], contents)
    nulls = pa.array(
        [None if statistics is None else statistics.nulls for statistics in contents], pa.int64()
    )
    differs = to_bools(pc.fill_null(pc.not_equal(stated[2], nulls), False))
    misleads = differs
    all_null = to_bools(pc.fill_null(pc.equal(stated[2], physical_rows), False))
    tight = to_bools(audited.tight)
    live_rows = pc.subtract(physical_rows, pc.fill_null(audited.deleted, 0))
    if live:
        # Beside bounds that are not tight, only these counts say anything about live rows.
        none = to_bools(pc.fill_null(pc.equal(stated[2], 0), False))
        has_values = to_bools(pc.fill_null(pc.less(nulls, live_rows), False))
        misleads = differs & (tight | ~audited.has_vector | none | (all_null & has_values))
    only_nulls = tight & to_bools(pc.fill_null(pc.equal(stated[2], live_rows), False))
    doubtful = np.where(is_known, ~exact & (excludes | differs | (only_nulls & ~all_null)), cut)
    wrong = exact & (excludes | misleads)
    return StatisticsComparison(
        wrong=wrong, loose=exact & ~audited.has_vector & loose & ~wrong, doubtful=doubtful
    )


def _compare_bounds(
    audited: AuditedFiles,
    leaf: StatisticsLeaf,
    lowest: pa.Array,
    highest: pa.Array,
    contents: Sequence[ColumnStatistics | None],
) -> tuple[Mask, Mask, Mask]:
    """Returns which bounds exclude values, which are wider than these, and which can be false
    because of a cut offset.
    """
    kind = audited.required.kind(leaf)
    if kind is None:
        nothing = np.zeros(len(lowest), np.bool_)
        return nothing, nothing, nothing
    cut = np.logical_or(*(to_bools(may_have_cut_offset(bound)) for bound in (lowest, highest)))
    low, high = (
        [statistics and getattr(statistics, name) for statistics in contents] for name in _EXTREMES
    )
    single = any(
        statistics is not None and statistics.kind == pa.float32() for statistics in contents
    )
    pairs = [
        _comparable(lowest, low, kind, single=single),
        _comparable(with_cut_microseconds(highest), high, kind, single=single),
    ]
    (low_stated, low_found), (high_stated, high_found) = pairs
    above, below = pc.greater(low_stated, low_found), pc.less(high_stated, high_found)
    excludes = to_bools(pc.fill_null(above, False)) | to_bools(pc.fill_null(below, False))
    loose = np.zeros(len(lowest), np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        # Delta Spark answers MIN and MAX with these.
        wide = [pc.less(low_stated, low_found), pc.greater(high_stated, high_found)]
        loose = np.logical_or(*(to_bools(pc.fill_null(statistics, False)) for statistics in wide))
        loose &= to_bools(audited.tight)
    return excludes, loose, cut


_EXTREMES = ("least", "greatest")


def _comparable(
    stated: pa.Array, values: Sequence[Any], kind: pa.DataType, *, single: bool
) -> tuple[pa.Array, pa.Array]:
    """Returns stated bounds and values of files as arrays of one type with the order of `kind`."""
    if pa.types.is_string(kind):
        return stated.cast(pa.binary()), pa.array(values, pa.binary())
    if pa.types.is_floating(kind):
        if single:
            # Writers state the shortest digits of a float, which are those of another double.
            stated = stated.cast(pa.float32(), safe=False).cast(pa.float64())
        # For Spark, NaN is greater than every number.
        stated = pc.if_else(pc.is_nan(stated), float("inf"), stated)
        return stated, pa.array(values, pa.float64())
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(_MOST_DIGITS, kind.scale)
        return stated.cast(wide), pa.array(values, wide)
    if pa.types.is_boolean(kind):
        return stated.cast(pa.int64()), pa.array(values, pa.bool_()).cast(pa.int64())
    if pa.types.is_date(kind):
        stated = stated.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        stated = stated.view(pa.int64())
    return stated.cast(pa.int64()), pa.array(values, pa.int64())
