"""The `erasure-report` operation: reports where rows still exist. Changes nothing.

Every Parquet file in the table's folder is read, also those that no version refers to, and, where
the store tells, the contents of deleted files that it keeps. Statistics of the log are not trusted:
they can be wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.core.parquet_report import write_rows
from delta_maintenance.operations.erasure_report.examination import (
    Examination,
    Examined,
    condition_of,
)
from delta_maintenance.operations.erasure_report.options import (
    ErasureReportOptions,
    ErasureReportPlan,
    ErasureReportResult,
    FoundFile,
    PlaceTotal,
)
from delta_maintenance.operations.erasure_report.places import TableFiles
from delta_maintenance.operations.holds.find import find_holds
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_SHOWN = 100
_REPORT = pa.schema(
    [
        ("place", pa.string()),
        ("path", pa.string()),
        ("version_id", pa.string()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("rows", pa.int64()),
        ("ends", pa.timestamp("ms", "UTC")),
        ("ends_by", pa.string()),
        ("problem", pa.string()),
    ]
)
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
        examined: list[Examined] = []
        for each in Examination(files, plan.options.where).run():
            examined.append(each)
            if context.progress is not None:
                context.progress("files read", len(examined), files.listed.num_rows)
        if context.report is not None:
            write_rows(
                _rows(examined),
                context.report,
                table=table.store,
                storage_options=context.storage_options(context.report),
            )
        return _result(snapshot, plan, files, examined, now=context.now())
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__


def _files(snapshot: Snapshot, options: ErasureReportOptions, context: RunContext) -> TableFiles:
    holds = find_holds(
        snapshot, options.holders, now=context.started, storage_options=context.storage_options
    )
    return TableFiles(snapshot, holds)


def _result(
    snapshot: Snapshot,
    plan: ErasureReportPlan,
    files: TableFiles,
    examined: Sequence[Examined],
    *,
    now: datetime,
) -> ErasureReportResult:
    found = [each for each in examined if each.rows]
    problems = [f"{e.file.path}: {e.problem}" for e in examined if e.problem is not None]
    unknown = [*dict.fromkeys(files.not_examined), *_unknown_versions(files.store), *problems]
    notes = [*snapshot.warnings, *files.holds.notes, _IN_LOG]
    if files.others:
        notes.append(f"{count_text(files.others, 'file')} that are no Parquet files were not read")
    digest = hashlib.sha256()
    for each in examined:
        line = f"{each.file.path}\t{each.file.version_id or ''}\t{each.file.size}\t{each.sha256}\n"
        digest.update(line.encode())
    return ErasureReportResult(
        table=snapshot.table,
        version=snapshot.version,
        status="remains" if found else "uncertain" if unknown else "erased",
        examined_at=now,
        where=plan.options.where,
        files_read=len(examined),
        bytes_read=sum(each.file.size for each in examined),
        digest=digest.hexdigest(),
        places=_totals(found),
        found=tuple(_found(each) for each in found[:_SHOWN]),
        not_examined=tuple(unknown[:_SHOWN]),
        notes=tuple(notes),
    )


def _unknown_versions(store: Store) -> tuple[str, ...]:
    if store.tells_old_versions:
        return ()
    return ("the contents of deleted files that the store may still keep",)


def _found(examined: Examined) -> FoundFile:
    file = examined.file
    return FoundFile(
        place=file.place,
        path=file.path,
        version_id=file.version_id,
        rows=examined.rows,
        size=file.size,
        sha256=examined.sha256,
        ends=file.ends,
        ends_by=file.ends_by,
    )


def _totals(found: Sequence[Examined]) -> tuple[PlaceTotal, ...]:
    totals = []
    for place in dict.fromkeys(each.file.place for each in found):
        here = [each for each in found if each.file.place == place]
        ends = [each.file.ends for each in here]
        totals.append(
            PlaceTotal(
                place=place,
                files=len(here),
                rows=sum(each.rows for each in here),
                last_end=None if None in ends else max(end for end in ends if end is not None),
            )
        )
    return tuple(totals)


def _rows(examined: Sequence[Examined]) -> pa.Table:
    ends = [each.file.ends for each in examined]
    millis = [None if end is None else epoch_millis(end) for end in ends]
    columns = {
        "place": [each.file.place for each in examined],
        "path": [each.file.path for each in examined],
        "version_id": [each.file.version_id for each in examined],
        "size": [each.file.size for each in examined],
        "sha256": [each.sha256 for each in examined],
        "rows": [each.rows for each in examined],
        "ends": pc.cast(pa.array(millis, pa.int64()), _REPORT.field("ends").type),
        "ends_by": [each.file.ends_by for each in examined],
        "problem": [each.problem for each in examined],
    }
    return pa.table(columns, schema=_REPORT)
