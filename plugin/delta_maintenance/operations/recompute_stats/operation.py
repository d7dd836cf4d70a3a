"""The `recompute-stats` operation: statistics where they are missing, damaged or wrong.

The plan is an audit of the log. `apply` opens only files with a defect, and commits their new
statistics in batches. The rows of the table, and all other fields of its files, do not change.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, locating
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.parquet_report import write_batches
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.operations.recompute_stats import (
    RecomputeStatsOptions,
    RecomputeStatsPlan,
    RecomputeStatsResult,
)
from delta_maintenance.operations.recompute_stats.commits import StatisticsCommits
from delta_maintenance.operations.recompute_stats.defects import (
    COMPARED,
    SCHEMA,
    UNCERTAIN,
    AuditTotals,
    DefectListing,
    audit_files,
)
from delta_maintenance.operations.recompute_stats.reading import LocalStatistics
from delta_maintenance.operations.rewriting.planning import archived_note, stats_columns_note
from delta_maintenance.protocol.data_files.layout import DataFileLayout
from delta_maintenance.protocol.features.registry import Operation
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_writable

_SHOWN_FILES = 100


def plan(
    snapshot: Snapshot,
    options: RecomputeStatsOptions | None = None,
    context: RunContext | None = None,
) -> RecomputeStatsPlan:
    """Examines the statistics of all live files. Reads the log once, and no data file.

    Raises `UnsupportedFeatureError` if the table must not be written to or has a column whose
    values cannot be read, and `RefusedError` if its clustering columns cannot be determined.
    """
    context = context or RunContext()
    # Python callers may pass values of other types.
    options = (options or RecomputeStatsOptions()).validated()
    with locating(table=snapshot.table, version=snapshot.version):
        require_writable(snapshot, Operation.COMMIT)
        DataFileLayout.of(snapshot.protocol, snapshot.metadata)
        totals = audit_files(snapshot, options, now=context.started)
    engine, engine_reason = _engine(options, totals.files)
    return RecomputeStatsPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        is_noop=not totals.files,
        reason=f"{_reason(totals)}; {engine_reason}" if totals.files else _reason(totals),
        options=options,
        num_files=totals.num_files,
        total_bytes=totals.total_bytes,
        files=totals.files,
        bytes=totals.bytes,
        files_without_bounds=totals.files_without_bounds,
        bytes_without_bounds=totals.bytes_without_bounds,
        defects=totals.defects,
        columns=totals.columns,
        commits=math.ceil(totals.files / options.files_per_commit),
        engine=engine,
        notes=(
            *archived_note(totals.archived),
            *stats_columns_note(snapshot),
            *commit_notes(snapshot),
        ),
    )


def prepare(
    table: Table, options: RecomputeStatsOptions, context: RunContext
) -> Prepared[RecomputeStatsPlan, RecomputeStatsResult]:
    """Plans, and writes the report that the context requests."""
    snapshot = context.snapshot_of(table)
    planned = plan(snapshot, options, context)
    listing = DefectListing(
        snapshot=snapshot, options=planned.options, now=context.started, files=planned.files
    )
    if context.report is not None:
        write_batches(
            listing.batches(),
            SCHEMA,
            context.report,
            table=table.store,
            storage_options=context.storage_options(context.report),
        )
    execute = partial(apply, table, planned, context, snapshot=snapshot)
    return Prepared(plan=planned, apply=execute, listing=listing)


def apply(
    table: Table,
    plan: RecomputeStatsPlan,
    context: RunContext | None = None,
    *,
    snapshot: Snapshot | None = None,
) -> RecomputeStatsResult:
    """Recomputes the statistics of the latest version of the table, by the options of the plan.

    `snapshot` is the snapshot of the plan, if it is still in memory, which saves opening it again.
    Errors before the first commit are raised, and so is a commit with an unknown outcome; later
    errors are in the Result.
    """
    context = context or RunContext()
    if plan.is_noop:
        return RecomputeStatsResult(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
    context.require_engine(plan)
    engine = context.engine if plan.engine == "spark" else LocalStatistics(table.store)
    snapshot = snapshot if snapshot is not None else table.snapshot()
    problem: str | None = None
    run: StatisticsCommits | None = None
    try:
        require_writable(snapshot, Operation.COMMIT)
        run = StatisticsCommits(
            table, snapshot, plan.options, context, engine=engine, expected=plan.files
        )
        run.run()
    except DeltaMaintenanceError as error:
        if run is None or not run.commits or isinstance(error, CommitUnknownError):
            raise error.locate(table=table.uri) from error.__cause__
        problem = str(error.locate(table=table.uri))
    return _result(table, run, problem)


def _result(table: Table, run: StatisticsCommits, problem: str | None) -> RecomputeStatsResult:
    skipped = run.repair.skipped
    damaged = next((file for file in skipped if file.damaged), None)
    status: Literal["recomputed", "partly", "failed", "nothing-to-do"]
    status = "recomputed" if run.commits else "nothing-to-do"
    if problem is not None:
        status = "partly"
    elif damaged is not None:
        status, problem = "failed", damaged.problem
    notes = []
    if run.overtaken:
        changed = count_text(run.overtaken, "file")
        notes.append(f"left out because other writers changed them: {changed}")
    if skipped:
        notes.append(f"left out because they cannot be read: {count_text(len(skipped), 'file')}")
    return RecomputeStatsResult(
        table=table.uri,
        version=run.version,
        status=status,
        num_commits=run.commits,
        files_recomputed=run.files,
        files_decoded=run.decoded,
        files_confirmed=run.repair.confirmed,
        files_overtaken=run.overtaken,
        skipped=tuple(skipped[:_SHOWN_FILES]),
        num_skipped=len(skipped),
        problem=problem,
        notes=tuple(notes),
    )


def _engine(options: RecomputeStatsOptions, files: int) -> tuple[Literal["local", "spark"], str]:
    """Returns the engine for a number of files to open, and the reason."""
    if options.engine != "auto":
        asked = "the local engine" if options.engine == "local" else "Spark"
        return options.engine, f"{asked} was asked for"
    if files >= options.auto_spark_files:
        return "spark", "these are more files than one process should open"
    return "local", "these are few enough files for one process"


def _reason(totals: AuditTotals) -> str:
    total = count_text(totals.num_files - totals.archived, "file")
    if not totals.files:
        return (
            f"the statistics of {total} are complete as far as the log shows; --check-files "
            "compares them with the files"
        )
    reasons = {defect.reason for defect in totals.defects}
    statistics = "missing or wrong statistics"
    if reasons <= {*UNCERTAIN}:
        statistics = "files to compare" if COMPARED in reasons else "bounds by an unknown writer"
    reason = f"{statistics}: {totals.files:,} of {total}"
    if not totals.files_without_bounds:
        return reason
    share = totals.bytes_without_bounds / (totals.total_bytes or 1)
    size = size_text(totals.bytes_without_bounds)
    return f"{reason}; {size} ({share:.0%}) are in files that lack the bounds of a column"
