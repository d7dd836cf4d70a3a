"""Statistics as columns: results of conversions, and alignment of `stats_parsed` to a type.

Implements the `stats_parsed` part of "Per-file Statistics" and "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.statistics.values import converted

Path = tuple[str, ...]
"""The location of a statistic in physical names, such as `("minValues", "address", "city")`."""

MAX_PATH_LENGTH = 64
"""Paths are truncated here, because statistics may be nested deeper than Python can recurse."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvertedStatistics:
    """Converted statistics, and the values that the conversion could not represent."""

    values: pa.Array
    """One value for each input row; null where there are no statistics."""
    unreadable: pa.BooleanArray
    """Rows whose text is not a JSON object; they count as rows without statistics."""
    lost: tuple[Path, ...]
    """Paths of statistics that are in some input row and not in `values`, sorted. If there are any,
    only the input is complete."""


def align_statistics(parsed: pa.StructArray, statistics_type: pa.StructType) -> ConvertedStatistics:
    """The `stats_parsed` of a checkpoint, converted to exactly `statistics_type`.

    `parsed` may have any columns in any order, either spelling of `nullCount`, and timestamps as
    INT96 or microseconds with or without a time zone (none means UTC). Types are widened if the
    table widened them; values are never rounded or truncated.
    """
    lost: set[Path] = set()
    values = _align_column(merge_null_counts(parsed, lost), statistics_type, (), lost)
    return ConvertedStatistics(
        values=values, unreadable=none_unreadable(len(parsed)), lost=tuple(sorted(lost))
    )


def merge_null_counts(parsed: pa.StructArray, lost: set[Path]) -> pa.StructArray:
    """`parsed` with `nullCounts` renamed to `nullCount`; `lost` records rows that have both."""
    names = [field.name for field in parsed.type]
    if "nullCounts" not in names:
        return parsed
    columns = dict(zip(names, parsed.flatten(), strict=True))
    misspelt = columns.pop("nullCounts")
    right = columns.get("nullCount")
    if right is None or not has_values(right):
        columns["nullCount"] = misspelt if right is None or has_values(misspelt) else right
    elif has_values(misspelt):
        if right.type == misspelt.type:
            columns["nullCount"] = pc.coalesce(right, misspelt)
        if right.type != misspelt.type or _overlap(right, misspelt):
            lost.add(("nullCounts",))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.StructArray.from_arrays(
        list(columns.values()), fields=fields, mask=pc.is_null(parsed)
    )


def paths_with_values(column: pa.Array, path: Path) -> Iterator[Path]:
    """The paths of leaves with values in `column`, whose own path is `path`."""
    if pa.types.is_struct(column.type) and len(path) < MAX_PATH_LENGTH:
        for field, child in zip(column.type, column.flatten(), strict=True):
            yield from paths_with_values(child, (*path, field.name))
    elif column.null_count < len(column):
        yield path


def has_values(column: pa.Array) -> bool:
    """Whether any leaf has a value; objects without members have none."""
    return any(True for _ in paths_with_values(column, ()))


def none_unreadable(rows: int) -> pa.BooleanArray:
    """The `unreadable` of input that is not text."""
    return pc.is_valid(pa.nulls(rows))


def _overlap(left_values: pa.Array, right_values: pa.Array) -> bool:
    return bool(pc.any(pc.and_(pc.is_valid(left_values), pc.is_valid(right_values))).as_py())


def _align_column(column: pa.Array, target: pa.DataType, path: Path, lost: set[Path]) -> pa.Array:
    if not pa.types.is_struct(target):
        converted_column = converted(column, target)
        if converted_column.null_count > column.null_count:
            lost.update(paths_with_values(column, path))
        return converted_column
    if not pa.types.is_struct(column.type):
        lost.update(paths_with_values(column, path))
        return pa.nulls(len(column), target)
    columns_by_name = dict(
        zip((field.name for field in column.type), column.flatten(), strict=True)
    )
    children = []
    for field in target:
        here = (*path, field.name)
        child = columns_by_name.pop(field.name, None)
        if child is None:
            children.append(pa.nulls(len(column), field.type))
        else:
            children.append(_align_column(child, field.type, here, lost))
    for name, extra in columns_by_name.items():
        lost.update(paths_with_values(extra, (*path, name)))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=pc.is_null(column))
