"""Runs of fsck, and the states of their steps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from delta_maintenance.operations import fsck
from delta_maintenance.operations.core import RunContext
from delta_maintenance.operations.fsck import FsckOptions, FsckPlan, FsckResult
from delta_maintenance.storage import MemoryStore
from delta_maintenance.table.read import Table
from tests.support.tables.sound_tables import SoundTable
from tests.support.tables.table_builder import EPOCH_MS

NOW = datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(days=2)
REPAIR = FsckOptions(repair=True)


def run(
    table: SoundTable | Table, options: FsckOptions | None = None, *, now: datetime = NOW
) -> FsckResult:
    opened = table if isinstance(table, Table) else table.open()
    plan = fsck.plan(opened, options, context=RunContext.at(now))
    # Only the JSON of the plan is passed on.
    return fsck.apply(
        opened,
        FsckPlan.from_json(json.loads(json.dumps(plan.to_json()))),
        context=RunContext.at(now),
    )


def files_of(table: SoundTable) -> dict[str, bytes]:
    store = table.store
    assert isinstance(store, MemoryStore)
    paths = [path for batch in store.list_tree() for path in batch["path"].to_pylist()]
    return {path: store.read(path) for path in paths}


def outcomes(result: FsckResult) -> dict[str, str]:
    return {outcome.action: outcome.status for outcome in result.repairs}
