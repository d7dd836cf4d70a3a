"""The assessment of a table: operations that are due, their order, reasons, cost and benefit.

The log shows the last run of an operation that makes a commit, such as VACUUM END of any engine.
`fsck`, `clean-log`, and a vacuum that found nothing or commits nothing leave no commit; for these,
the caller stores a `LastRun`. Without a record, the operation counts as never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.clean_log.policy import CleanLogRule
from delta_maintenance.operations.health import TableHealth, measure
from delta_maintenance.operations.vacuum.policy import VacuumRule
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.due import assessed_operations
from delta_maintenance.policies.failures import failure_of
from delta_maintenance.policies.looks import Looks
from delta_maintenance.policies.models import AssessedOperation, Assessment, LastRun
from delta_maintenance.table.read.file_sums import SumMemory
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

__all__ = [
    "AssessedOperation",
    "Assessment",
    "LastRun",
    "assess",
    "assess_table",
    "failed_assessment",
]


def assess_table(
    table: Table,
    policy_table: PolicyTable,
    *,
    now: datetime,
    last_runs: Sequence[LastRun] = (),
    previous: TableHealth | None = None,
    looks: Looks | None = None,
) -> Assessment:
    """Like `assess`, on the latest version; errors become part of the assessment.

    `looks` are the earlier looks of the same process at this table.
    """
    looks = looks or Looks(table)
    try:
        return assess(
            looks.newest(),
            policy_table,
            now=now,
            last_runs=last_runs,
            previous=previous,
            memory=looks.sums,
        )
    except Exception as error:
        failure = failure_of(error, where=policy_table.name)
        return failed_assessment(policy_table, failure, now=now)


def failed_assessment(
    table: PolicyTable, error: DeltaMaintenanceError, *, now: datetime
) -> Assessment:
    """The assessment of a table that could not be read."""
    return Assessment(
        name=table.name,
        uri=table.uri,
        assessed_at=now,
        status="failed",
        problem=str(error.located(table=table.uri)),
        exit_status=error.exit_status,
        retryable=error.retryable,
    )


def assess(
    snapshot: Snapshot,
    table: PolicyTable,
    *,
    now: datetime,
    last_runs: Sequence[LastRun] = (),
    previous: TableHealth | None = None,
    memory: SumMemory | None = None,
) -> Assessment:
    """Assesses the latest snapshot. Reads the same files as `measure`, and changes nothing.

    `previous` is the health in an earlier assessment, whose commits are not read again; `memory`
    has the sums of files of an earlier one in the same process.
    """
    runs = {run.operation: run for run in last_runs}
    vacuumed, rules = runs.get("vacuum"), table.rules
    clean_log, vacuum = rules.value("clean_log"), rules.value("vacuum")
    health = measure(
        snapshot,
        now=now,
        log_retention=clean_log.retention if isinstance(clean_log, CleanLogRule) else None,
        vacuum_retention=vacuum.retention if isinstance(vacuum, VacuumRule) else None,
        vacuumed_at=vacuumed.at if vacuumed is not None and vacuumed.succeeded else None,
        previous=previous,
        memory=memory,
    )
    operations = tuple(assessed_operations(snapshot, health, rules, now=now, last_runs=runs))
    statuses = {each.status for each in operations}
    return Assessment(
        name=table.name,
        uri=table.uri,
        assessed_at=now,
        status=next((s for s in ("due", "blocked") if s in statuses), "nothing-due"),
        operations=operations,
        next_due_at=min((e.due_at for e in operations if e.due_at is not None), default=None),
        health=health,
        notes=health.warnings,
    )
