"""The `erasure-report` operation: reports where rows still exist. Changes nothing.

Every Parquet file in the table's folder is read, also those that no version refers to, and, where
the store tells, the contents of deleted files that it keeps. Statistics of the log are not trusted:
they can be wrong.
"""

from __future__ import annotations

from collections import deque

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.operations.erasure_report.examination import Examination, condition_of
from delta_maintenance.operations.erasure_report.options import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
)
from delta_maintenance.operations.erasure_report.places import TableFiles
from delta_maintenance.operations.erasure_report.tally import MOST_SHOWN, REPORT, Tally
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_IN_LOG = (
    "the log is not examined: its statistics and partition values can repeat values of deleted "
    "rows until clean-log deletes them"
)


def plan(
    snapshot: Snapshot, options: ErasureReportOptions, context: RunContext | None = None
) -> ErasureReportPlan:
    """Lists the files to read. `InvalidRequestError` for a condition that cannot be used."""
    context, options = context or RunContext(), options.validated()
    try:
        condition_of(snapshot, options.where)
        files = _files(snapshot, options, context)
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__
    return ErasureReportPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        options=options,
        files=files.listed.num_rows,
        bytes=files.size,
        reason=f"{count_text(files.listed.num_rows, 'file')} can contain rows of the table",
        notes=snapshot.warnings,
    )


def apply(
    table: Table, plan: ErasureReportPlan, context: RunContext | None = None
) -> ErasureReportResult:
    """Reads the files, as they are now, and counts the matching rows."""
    context = context or RunContext()
    snapshot = table.snapshot()
    try:
        files = _files(snapshot, plan.options, context)
        tally = Tally(context.progress, files.listed.num_rows)
        batches = tally.rows(Examination(files, plan.options.where).run())
        if context.report is not None:
            write_batches(
                batches,
                REPORT,
                context.report,
                table=table.store,
                storage_options=context.storage_options(context.report),
            )
        # Without a report, the rows are only counted.
        deque(batches, maxlen=0)
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__
    unknown = (
        *dict.fromkeys(files.not_examined),
        *_unknown_versions(files.store),
        *tally.problems,
    )
    notes = [*snapshot.warnings, *files.holds.notes, _IN_LOG]
    if tally.others:
        notes.append(f"not searched: {count_text(tally.others, 'file')} in other formats")
    return ErasureReportResult(
        table=snapshot.table,
        version=snapshot.version,
        status="remains" if tally.places else "uncertain" if unknown else "erased",
        examined_at=context.now(),
        where=plan.options.where,
        files_read=tally.files,
        bytes_read=tally.bytes,
        digest=tally.digest,
        places=tuple(tally.places.values()),
        found=tuple(tally.found),
        not_examined=unknown[:MOST_SHOWN],
        notes=tuple(notes),
    )


def _files(snapshot: Snapshot, options: ErasureReportOptions, context: RunContext) -> TableFiles:
    holds = find_holds(
        snapshot, options.holders, now=context.started, storage_options=context.storage_options
    )
    return TableFiles(snapshot, holds)


def _unknown_versions(store: Store) -> tuple[str, ...]:
    if store.tells_old_versions:
        return ()
    return ("the contents of deleted files that the store may still keep",)
