"""Tables without row IDs, and their backfill in small batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from delta_maintenance.operations import backfill_row_ids
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core import RunContext
from delta_maintenance.storage.core import Store
from delta_maintenance.table.data.footers import RowCounts
from delta_maintenance.table.read import Table
from tests.support.operations.row_ids import Action, RacedStore, commits
from tests.support.tables import actions as log
from tests.support.tables.table_builder import TableBuilder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACKED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])
SUSPENDED = {"delta.rowTrackingSuspended": "true"}


def stats(rows: int, **more: Any) -> str:
    return json.dumps({"numRecords": rows, **more})


SUPPORTED = log.protocol(1, 7, writer_features=["domainMetadata", "rowTracking"])


def built(
    *files: Action,
    protocol: Action | None = None,
    configuration: dict[str, str] | None = None,
    store: Store | None = None,
) -> TableBuilder:
    """Builds a table of these files, by default f0 to f9, where fN has N rows."""
    builder = TableBuilder(store or RacedStore())
    some = files or tuple(log.add(f"f{number}", stats=stats(number)) for number in range(10))
    metadata = log.metadata(configuration=configuration)
    builder.commit([protocol or log.protocol(), metadata, *some])
    return builder


def options(**given: Any) -> BackfillRowIdsOptions:
    return BackfillRowIdsOptions(**{"files_per_commit": 4, **given})


def plan_of(table: TableBuilder, **given: Any) -> BackfillRowIdsPlan:
    return backfill_row_ids.plan(
        table.open().snapshot(), options(**given), context=RunContext.at(NOW)
    )


def backfill(table: TableBuilder, **given: Any) -> BackfillRowIdsResult:
    return apply(table, plan_of(table, **given))


def apply(table: TableBuilder, plan: BackfillRowIdsPlan, **given: Any) -> BackfillRowIdsResult:
    return backfill_row_ids.apply(table.open(), plan, RunContext(sleep=lambda _: None, **given))


def races(table: TableBuilder, *others: Callable[[], object] | None) -> None:
    assert isinstance(table.store, RacedStore)
    table.store.races = list(others)


def of(table: TableBuilder, name: str) -> list[tuple[int, Action]]:
    return [
        (v, action[name]) for v, lines in commits(table.store) for action in lines if name in action
    ]


def operations(table: TableBuilder) -> list[str]:
    return [info["operation"] for _, info in of(table, "commitInfo")]


def counting(rows: dict[str, int]) -> Callable[[pa.StringArray], RowCounts]:
    def count(paths: pa.StringArray) -> RowCounts:
        asked = paths.to_pylist()
        counts = pa.array([rows.get(path) for path in asked], pa.int64())
        return RowCounts(
            counts=counts, problems=tuple(f"{path}: gone" for path in asked if path not in rows)
        )

    return count


def latest(table: TableBuilder) -> int:
    return Table(table.store).latest_version()
