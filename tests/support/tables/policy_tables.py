"""Tables in memory and policies for them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from delta_maintenance.clock import epoch_millis
from delta_maintenance.policies import AssessedOperation, Assessment, RunEnvironment, RunResult
from delta_maintenance.policies.assess import assess
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.run import run
from delta_maintenance.storage import MemoryStore
from tests.support.tables.actions import add, remove
from tests.support.tables.vacuum_tables import NOW, Folder, days_ago

STATS = '{"numRecords":1}'
EVERYTHING: dict[str, Any] = {
    "protocol": {"features": ["deletionVectors"], "properties": {"delta.checkpointPolicy": "v2"}},
    "row_tracking": True,
    "fsck": True,
    "checkpoint": {"max_commits": 3},
    "compact_log": {"commits_per_file": 2},
    "clean_log": True,
    "vacuum": True,
}


def asked(**rules: Any) -> PolicyTable:
    """Returns a table of a policy with these rules."""
    entry = {"name": "t", "uri": "memory://t", **rules}
    return Policy.from_json({"version": 1, "tables": [entry]}).named_tables[0]


def assessed(table: Folder, *, now: datetime = NOW, **rules: Any) -> Assessment:
    """Assesses the table, without stored state."""
    return assess(table.open().snapshot(), asked(**rules), now=now)


def only(assessment: Assessment) -> AssessedOperation:
    """Returns the only operation that the policy requests."""
    (operation,) = assessment.operations
    return operation


def run_on(
    table: Folder, policy_table: PolicyTable, *, now: Callable[[], datetime] | None = None, **o: Any
) -> RunResult:
    """Runs the due operations, at the tests' instant unless a clock is given."""
    clock = now or (lambda: NOW)
    assert isinstance(table.store, MemoryStore)
    table.store.now_ms = lambda: epoch_millis(NOW)
    parts = {name: o.pop(name, None) for name in ("submit", "lease", "save_files", "budget")}
    environment = RunEnvironment(now=clock, **parts)
    return run(table.open(), policy_table, environment=environment, **o)


class Ticking:
    """A clock that advances at every reading."""

    def __init__(self, step: timedelta) -> None:
        self.at = NOW
        self.step = step

    def __call__(self) -> datetime:
        self.at += self.step
        return self.at


def neglected(commits: int = 12, *, dead: int = 1) -> Folder:
    """Returns a table with old history, a checkpoint and unreferenced files."""
    table = Folder()
    for number in range(commits):
        table.log(add(f"{number}.parquet", stats=STATS))
        table.file(f"{number}.parquet")
    for number in range(dead):
        table.log(remove(f"{number}.parquet", deletionTimestamp=days_ago(40)))
    table.checkpoint(3)
    return table


def statuses(result: RunResult) -> dict[str, str]:
    """The status of each operation."""
    return {outcome.operation: outcome.status for outcome in result.outcomes}
