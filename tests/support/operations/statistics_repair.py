"""Tables with files without statistics, and the statistics of their values, computed naively."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from delta_maintenance.operations import recompute_stats
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.recompute_stats import (
    RecomputeStatsOptions,
    RecomputeStatsPlan,
    RecomputeStatsResult,
)
from delta_maintenance.storage.core import Store
from delta_maintenance.table.read import Table
from tests.support.rewrites.table_rows import live_adds

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def planned(store: Store, **options: Any) -> RecomputeStatsPlan:
    return recompute_stats.plan(
        Table(store).snapshot(), RecomputeStatsOptions(**options), context=RunContext.at(NOW)
    )


def recompute(store: Store, **options: Any) -> RecomputeStatsResult:
    table = Table(store)
    context = RunContext.at(NOW, sleep=lambda _: None)
    return recompute_stats.apply(table, planned(store, **options), context)


def statistics(store: Store) -> dict[str, dict[str, Any]]:
    """Returns the statistics of each live file; numbers with all their digits."""
    return {
        path: json.loads(add["stats"], parse_float=Decimal, parse_int=Decimal)
        for path, add in live_adds(store).items()
    }


def check_bounds(stats: Mapping[str, Any], name: str, values: Sequence[Any]) -> None:
    """Checks that the statistics of a column are right for its values in all physical rows, as a
    reader would use them.
    """
    nulls = sum(value is None for value in values)
    tight = stats.get("tightBounds", True)
    stated = _at(stats.get("nullCount", {}), name)
    assert stats["numRecords"] == len(values)
    assert stated == nulls or (not tight and stated is not None), (name, stated, nulls)
    least, greatest = (_at(stats.get(part, {}), name) for part in ("minValues", "maxValues"))
    for value in values:
        if value is None:
            continue
        if isinstance(value, float) and math.isnan(value):
            assert greatest in (None, "NaN"), f"{name}: NaN is greater than {greatest}"
            continue
        if least is not None and least != "NaN":
            assert _lower(least, value) <= _key(value), (name, least, value)
        if greatest is not None and greatest != "NaN":
            assert _upper(greatest, value) >= _key(value), (name, greatest, value)


def leaves_of(rows: Sequence[Any], name: str, kind: pa.DataType) -> Iterator[tuple[str, list[Any]]]:
    """Yields the leaves of a column, by their path with dots, and the value of each row."""
    if not pa.types.is_struct(kind):
        yield name, list(rows)
        return
    for field in kind:
        inner = [None if row is None else row[field.name] for row in rows]
        yield from leaves_of(inner, f"{name}.{field.name}", field.type)


def _at(part: Mapping[str, Any], name: str) -> Any:
    found: Any = part
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _lower(bound: Any, value: Any) -> Any:
    return _typed(bound, value)


def _upper(bound: Any, value: Any) -> Any:
    # Readers know that timestamps are truncated to milliseconds.
    late = timedelta(microseconds=999) if isinstance(value, datetime) else None
    found = _typed(bound, value)
    return found if late is None else found + late


def _typed(bound: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return datetime.fromisoformat(bound)
    if isinstance(value, date):
        return date.fromisoformat(bound)
    if isinstance(value, str):
        return bound.encode("utf-8", "surrogatepass")
    if isinstance(value, float):
        return float(bound)
    return Decimal(bound)


def _key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
