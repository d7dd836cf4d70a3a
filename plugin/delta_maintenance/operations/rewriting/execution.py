"""Executes the plan of an operation that rewrites data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.rewriting.commits import CommitSettings
from delta_maintenance.operations.rewriting.engine import LocalEngine
from delta_maintenance.operations.rewriting.models import BinReport, RewriteOptions, RewriteResult
from delta_maintenance.operations.rewriting.planning import Survey
from delta_maintenance.operations.rewriting.run import RewriteRun, RunSettings, Work
from delta_maintenance.operations.rewriting.sources import chosen_adds
from delta_maintenance.table.read.partition_codes import partition_types
from delta_maintenance.table.read.table import Table

_SHOWN_BINS = 1000
_SHOWN_FILES = 100
_LANDED = ("committed", "remapped", "written-again")
_FAILED = ("failed", "not-proved")
_LOST = ("dropped", "contended", "table-changed")

R = TypeVar("R", bound=RewriteResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteCommit:
    """What the commits of a rewrite state in `commitInfo`."""

    operation: Literal["OPTIMIZE", "REORG"]
    parameters: Mapping[str, Any]
    """`operationParameters`."""


def execute(
    table: Table,
    surveyed: Survey,
    options: RewriteOptions,
    result: type[R],
    commit: RewriteCommit,
    context: RunContext,
) -> R:
    """Rewrites and commits the bins of a survey, by default in threads of this process.

    Before the first commit, errors are raised. After it, the Result contains them.
    `CommitUnknownError` is always raised.
    """
    choice = surveyed.choice
    adds = chosen_adds(surveyed.snapshot, surveyed.files, choice)
    work = Work(
        adds=adds,
        bins=choice.bins,
        reasons=tuple(choice.reasons_of(row) for row in choice.rows.tolist()),
        partition_types=partition_types(surveyed.snapshot),
    )
    started = context.now()
    settings = RunSettings(
        commit=CommitSettings(
            operation=commit.operation,
            parameters=commit.parameters,
            other_writers=options.other_writers,
            now=context.now,
            new_id=context.new_id,
            sleep=context.sleep,
        ),
        until=_later(started, options.max_duration),
        workers=options.workers,
        progress=context.progress,
    )
    engine = context.engine or LocalEngine(table.store, new_id=context.new_id)
    run = RewriteRun(table, surveyed.snapshot, surveyed.contract, work, engine, settings)
    problem: str | None = None
    try:
        run.through()
    except DeltaMaintenanceError as error:
        if not run.commits.commits or isinstance(error, CommitUnknownError):
            raise error.located(table=table.uri) from error.__cause__
        problem = str(error.located(table=table.uri))
    return _result(table, surveyed, run, result, problem)


def _later(instant: datetime, by: timedelta | None) -> datetime | None:
    """Returns the end of a duration; None if `datetime` cannot represent it."""
    try:
        return None if by is None else instant + by
    except OverflowError:
        return None


def _result(
    table: Table, surveyed: Survey, run: RewriteRun, result: type[R], problem: str | None
) -> R:
    reports = run.reports()
    landed = [report for report in reports if report.fate in _LANDED]
    fates: dict[str, int] = {}
    for report in reports:
        fates[report.fate] = fates.get(report.fate, 0) + 1
    status, why = _status(reports, landed, run)
    return result(
        table=table.uri,
        version=run.commits.version,
        engine=surveyed.engine,
        status="partly" if problem is not None else status,
        files_before=sum(report.num_sources for report in landed),
        files_after=sum(len(report.outputs) for report in landed),
        bytes_before=sum(report.bytes_before for report in landed),
        bytes_after=sum(report.bytes_after for report in landed),
        rows=sum(report.rows for report in landed),
        num_bins=len(reports),
        num_commits=run.commits.commits,
        fates=fates,
        bins=tuple(sorted(reports, key=lambda report: report.fate in _LANDED)[:_SHOWN_BINS]),
        refused=tuple(run.refused[:_SHOWN_FILES]),
        num_refused=len(run.refused),
        problem=problem or why,
        notes=_notes(fates, landed, run),
    )


def _status(
    reports: Sequence[BinReport], landed: Sequence[BinReport], run: RewriteRun
) -> tuple[Literal["rewritten", "partly", "conflict", "failed", "nothing-to-do"], str | None]:
    """Returns the status of the run, and its problem if there is one."""
    failed = next((report for report in reports if report.fate in _FAILED), None)
    if failed is not None:
        return "failed", failed.problem
    damaged = next((file for file in run.refused if file.damaged), None)
    if damaged is not None:
        return "failed", damaged.problem
    if run.commits.table_changed is not None:
        return ("partly" if landed else "conflict"), run.commits.table_changed
    lost = next((report for report in reports if report.fate in _LOST), None)
    if lost is not None and not landed:
        return "conflict", lost.problem
    return ("rewritten" if landed else "nothing-to-do"), None


def _notes(
    fates: Mapping[str, int], landed: Sequence[BinReport], run: RewriteRun
) -> tuple[str, ...]:
    notes = []
    unbounded = sorted({bin_.unbounded for bin_ in landed if bin_.unbounded is not None})
    for column in unbounded:
        notes.append(f"files without bounds of {column} are not called clustered")
    if any(bin_.is_clustered is False and bin_.unbounded is None for bin_ in landed):
        notes.append("files that overlap as much as before are not called clustered")
    lost = sum(fates.get(fate, 0) for fate in ("superseded", *_LOST))
    if lost:
        bins = count_text(lost, "bin")
        notes.append(f"given up because other writers changed the table: {bins}")
    if fates.get("not-started"):
        notes.append(f"not started: {count_text(fates['not-started'], 'bin')}")
    if run.refused:
        notes.append(f"left out: {count_text(len(run.refused), 'file')}")
    return tuple(notes)
