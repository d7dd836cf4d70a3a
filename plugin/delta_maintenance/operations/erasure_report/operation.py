"""The `erasure-report` operation: reports where rows still exist. Changes nothing.

Every Parquet file in the folders of the table and of its clones is read, also those that no version
refers to, and, where the store tells, the contents of deleted files that it keeps. Each file is
read as all versions read it that have it and that can be opened. Statistics of the log prove
nothing, because they can be wrong, but they are searched for values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.operations.erasure_report import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
)
from delta_maintenance.operations.erasure_report.clones import SearchedTables
from delta_maintenance.operations.erasure_report.examination import Examination, Examined
from delta_maintenance.operations.erasure_report.log_values import LogValues
from delta_maintenance.operations.erasure_report.places import PlacedFiles
from delta_maintenance.operations.erasure_report.readings import TableReadings
from delta_maintenance.operations.erasure_report.tally import MOST_SHOWN, REPORT, ErasureTally
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_IN_LOG = (
    "the log is searched for values in statistics and partition values; conditions that operations "
    "record in commitInfo, values that statistics shorten, and old versions of files of the log in "
    "the store are not searched"
)


def plan(
    snapshot: Snapshot, options: ErasureReportOptions, context: RunContext | None = None
) -> ErasureReportPlan:
    """Lists the files to read. `InvalidRequestError` for a condition that cannot be used."""
    context, options = context or RunContext(), options.validated()
    try:
        with _search_tables(snapshot, options, context) as tables:
            TableReadings(options.where, tables.source.versions)
            number, size = tables.files, sum(searched.size for searched in tables)
            left_out = tables.not_examined
    except DeltaMaintenanceError as error:
        raise error.locate(table=snapshot.table, version=snapshot.version) from error.__cause__
    return ErasureReportPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        options=options,
        files=number,
        bytes=size,
        reason=f"{count_text(number, 'file')} can contain rows of the table",
        notes=(*snapshot.warnings, *(f"not examined: {searched}" for searched in left_out)),
    )


def apply(
    table: Table, plan: ErasureReportPlan, context: RunContext | None = None
) -> ErasureReportResult:
    """Reads the files, as they are now, and counts the matching rows."""
    context = context or RunContext()
    snapshot = table.snapshot()
    try:
        with _search_tables(snapshot, plan.options, context) as tables:
            tally = ErasureTally(context.progress, tables.files)
            batches = tally.rows(_examine(tables, plan.options.where))
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
        raise error.locate(table=snapshot.table, version=snapshot.version) from error.__cause__
    unknown = (*tables.not_examined, *tally.problems)
    notes = [*snapshot.warnings, *tables.source.holds.notes, _IN_LOG]
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


def _search_tables(
    snapshot: Snapshot, options: ErasureReportOptions, context: RunContext
) -> SearchedTables:
    options_at = context.storage_options
    holds = find_holds(snapshot, options.holders, now=context.started, storage_options=options_at)
    tables = SearchedTables(source=PlacedFiles(snapshot, holds))
    clones = (*options.holders.clones, *options.clones)
    try:
        tables.add(clones, now=context.started, options_at=options_at)
    except BaseException:
        tables.close()
        raise
    return tables


def _examine(tables: SearchedTables, where: str) -> Iterator[Examined]:
    readings = {}
    for table in tables:
        try:
            readings[table.name] = TableReadings(where, table.versions)
        except DeltaMaintenanceError as error:
            if table.clone is None:
                raise
            # Such as a column that the clone does not have.
            table.leave_out(error.problem)
        else:
            for problem in table.versions.problems:
                table.leave_out(problem)
    for table in tables:
        if table.name not in readings:
            continue
        examination = Examination(table, readings)
        yield from examination.run()
        yield from LogValues(table, readings[table.name], examination.without_rows).run()
