"""The `vacuum` operation: deletes files that no retained version of the table needs.

Implements the rules for physical deletion in "Add File and Remove File", and keeps some files that
Delta Spark deletes. The clock is read before the folder, the folder before the log, and the log
again before every round of deletions. When in doubt, a file is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from delta_maintenance.clock import NewId
from delta_maintenance.errors import DeltaMaintenanceError, FullStoreError, RefusedError, locating
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.holds.clones import Clone, CloneWatch
from delta_maintenance.operations.holds.kept_versions import require_no_new_keep
from delta_maintenance.operations.holds.models import HeldBack
from delta_maintenance.operations.vacuum import VacuumOptions, VacuumPlan, VacuumResult
from delta_maintenance.operations.vacuum.deletion import Deletion, remove_empty_directories
from delta_maintenance.operations.vacuum.engine import DeadFileListing, write_report
from delta_maintenance.operations.vacuum.planning import (
    Settings,
    VacuumSurvey,
    engine_for,
    require_same_settings,
    require_vacuumable,
    survey,
)
from delta_maintenance.operations.vacuum.references import record_vacuumed
from delta_maintenance.protocol.vacuum import Mask, ProtectedPaths
from delta_maintenance.quantities import duration_text
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.commit.outcome import Conflicted
from delta_maintenance.table.commit.transaction import Transaction, Writer
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.store_clock import require_same_clock

_PLAN_LIFE = timedelta(hours=1)


def plan(
    snapshot: Snapshot, options: VacuumOptions | None = None, context: RunContext | None = None
) -> VacuumPlan:
    """Plans a vacuum. `survey` returns the exact list of files as well."""
    context = context or RunContext()
    return _survey(snapshot, options or VacuumOptions(), context, now=context.started).plan


def apply(
    table: Table,
    plan: VacuumPlan,
    context: RunContext | None = None,
    *,
    surveyed: VacuumSurvey | None = None,
) -> VacuumResult:
    """Deletes the planned files that are still unreferenced. Concurrent runs do no harm.

    Without the survey of the plan, the folder is listed again, as of the time of the plan, and what
    was held then is held still. A plan is valid for an hour. Raises `RefusedError`, before anything
    is deleted, if the plan is older, if it exceeds the limits of its options, or if the clocks of
    this machine and of the store differ.
    """
    context = context or RunContext()
    started = context.now()
    with locating(table=table.uri):
        if not plan.is_noop:
            _require_young(plan, started)
        if surveyed is None and not plan.is_noop:
            holders = plan.options.holders.as_planned(HeldBack.versions(plan.held))
            options = replace(plan.options, holders=holders)
            surveyed = _survey(table.snapshot(), options, context, now=plan.planned_at)
        if surveyed is None or surveyed.plan.is_noop:
            made = plan if surveyed is None else surveyed.plan
            return VacuumResult(
                table=made.table,
                version=made.version,
                status="nothing-to-do",
                held=made.held,
                notes=(made.reason, *made.notes, *_record_vacuumed(table, made)),
            )
        return _VacuumRun(table, surveyed, started, context.new_id, context.progress).run()


def prepare(
    table: Table, options: VacuumOptions, context: RunContext
) -> Prepared[VacuumPlan, VacuumResult] | None:
    """Surveys, and writes the report that the context requests.

    Returns None if the survey requires Spark and the context has no engine for it.
    """
    snapshot = context.snapshot_of(table)
    if context.engine is None and engine_for(snapshot, options) == "spark":
        return None
    surveyed = _survey(snapshot, options, context, now=context.started)
    if context.report is not None:
        write_report(
            surveyed.found.batches(),
            context.report,
            table=table.store,
            storage_options=context.storage_options(context.report),
        )
    execute = partial(apply, table, surveyed.plan, context, surveyed=surveyed)
    return Prepared(plan=surveyed.plan, apply=execute, listing=DeadFileListing(surveyed.found))


def _survey(
    snapshot: Snapshot, options: VacuumOptions, context: RunContext, *, now: datetime
) -> VacuumSurvey:
    return survey(
        snapshot, options, now=now, engine=context.engine, storage_options=context.storage_options
    )


class _VacuumRun:
    """One run of `apply`."""

    def __init__(
        self,
        table: Table,
        surveyed: VacuumSurvey,
        now: datetime,
        new_id: NewId,
        progress: Progress | None,
    ) -> None:
        self.table = table
        self.store = table.store
        self.planned = surveyed.plan
        self.found = surveyed.found
        self.now = now
        self.new_id = new_id
        self.progress = progress
        self.watch = _LogWatch(surveyed.found.latest, surveyed.stored, surveyed.clones)
        self.done = Deletion()
        self.directories = 0
        self.stopped: str | None = None
        self.notes: list[str] = list(surveyed.plan.notes)

    def run(self) -> VacuumResult:
        planned = self.planned
        if planned.large is not None and not planned.options.allow_large_delete:
            raise RefusedError(
                planned.large,
                version=planned.version,
                remedy="check the dry run, then give --allow-large-delete",
            )
        require_same_clock(self.store, self.now, new_id=self.new_id, planned_at=planned.planned_at)
        start = self._start()
        finished = False
        try:
            finished = self._delete()
        finally:
            end = self._end(finished)
        done = self.done
        if done.lost:
            self.notes.append(
                "files were brought back into use while they were being deleted: restore them from "
                "a backup, or restore the table to a version without them"
            )
        complete = finished and not done.lost
        if complete:
            self.notes += _record_vacuumed(self.table, planned)
        return VacuumResult(
            table=planned.table,
            version=max(self.watch.latest.version, start or 0, end or 0),
            status="vacuumed" if complete else "partly",
            deleted=done.deleted,
            bytes=done.bytes,
            directories=self.directories,
            spared=done.spared,
            failures=tuple(f"{path}: {problem}" for path, problem in done.failures.items()),
            failed=done.failed,
            held=planned.held,
            stopped=self.stopped,
            lost=done.lost,
            start_version=start,
            end_version=end,
            notes=tuple(self.notes),
        )

    def _delete(self) -> bool:
        """Returns whether all files were deleted that were still unreferenced."""
        try:
            for done in self.found.deletion(self.watch):
                self.done = done
                if self.progress is not None:
                    self.progress("files deleted", done.deleted, self.planned.files)
        except DeltaMaintenanceError as error:
            if not self.done.deleted:
                raise
            self.stopped = str(error)
        if self.done.gave_up:
            self.stopped = "none of the files in the last round could be deleted"
        if self.done.failed or self.stopped is not None:
            return False
        removed = remove_empty_directories(self.store, self.found.directories)
        self.directories = sum(removed)
        return True

    def _log(self, operation: str, **details: Mapping[str, Any]) -> int | None:
        """Commits a record of the vacuum without file actions. Returns the version."""
        if not self.planned.logs_commits:
            return None
        transaction = Transaction(
            self.watch.latest,
            operation,
            parameters=details["parameters"],
            writer=Writer(
                other_writers=self.planned.options.other_writers,
                quiet=self.planned.options.quiet,
                new_id=self.new_id,
            ),
        )
        transaction.stage_info(metrics=details["metrics"])
        outcome = transaction.commit()
        if isinstance(outcome, Conflicted):
            raise outcome.as_error(self.planned.table)
        return outcome.version

    def _start(self) -> int | None:
        """Makes the opening commit. It only informs, so a vacuum makes room without it."""
        planned = self.planned
        try:
            return self._log(
                "VACUUM START",
                parameters=self._retention(),
                metrics={"numFilesToDelete": planned.files, "sizeOfDataToDelete": planned.bytes},
            )
        except FullStoreError as error:
            self.notes.append(f"VACUUM START is not in the log: {error.problem}")
            return None

    def _end(self, finished: bool) -> int | None:
        """Makes the closing commit, whose failure must not hide the first error."""
        if not self.planned.logs_commits:
            return None
        # New commits can forbid deletions, but not a record of them.
        with suppress(DeltaMaintenanceError):
            self.watch.check()
        try:
            return self._log(
                "VACUUM END",
                parameters={"status": "COMPLETED" if finished else "FAILED"},
                metrics={
                    "numDeletedFiles": self.done.deleted,
                    "numVacuumedDirectories": self.directories,
                },
            )
        except DeltaMaintenanceError as error:
            self.notes.append(f"VACUUM END is not in the log: {error.problem}")
            return None

    def _retention(self) -> dict[str, Any]:
        options = self.planned.options
        spark_parameters: dict[str, Any] = {
            "retentionCheckEnabled": not (
                options.allow_short_retention and options.no_other_writers
            ),
            "defaultRetentionMillis": _millis(self.watch.settings.retention),
        }
        if options.retention is not None:
            spark_parameters["specifiedRetentionMillis"] = _millis(options.retention)
        return spark_parameters


class _LogWatch:
    """Follows the log, its kept versions, and the logs of clones, from a survey on."""

    def __init__(self, latest: Snapshot, kept: frozenset[str], clones: tuple[Clone, ...]) -> None:
        self.latest = latest
        self.kept = kept
        self.clones = clones
        self._of_clones = CloneWatch(clones)
        self.settings = Settings.of(latest)
        self._came = ProtectedPaths(latest.log.store.addresses)

    def check(self) -> None:
        require_no_new_keep(self.latest.log.store, self.kept)
        self._of_clones.take_new(self._came)
        advanced = advance(self.latest)
        self.latest = advanced.snapshot
        for commit in advanced.commits:
            self._came.add(commit.adds)
            self._came.add(commit.removes)
        if advanced.commits:
            require_vacuumable(advanced.snapshot)
            require_same_settings(self.settings, advanced.snapshot)

    def covers(self, paths: pa.StringArray) -> Mask:
        return self._came.covers(paths)


def _require_young(planned: VacuumPlan, now: datetime) -> None:
    age = now - planned.planned_at
    if not -_PLAN_LIFE < age <= _PLAN_LIFE:
        raise RefusedError(
            f"the plan was made {duration_text(abs(age))} "
            f"{'ago' if age > timedelta() else 'from now'}",
            version=planned.version,
            remedy="plan again: a plan is valid for an hour",
        )


def _record_vacuumed(table: Table, planned: VacuumPlan) -> tuple[str, ...]:
    """Records where the next `lite` vacuum begins. Returns a note if that fails."""
    try:
        if planned.last_commit is not None:
            record_vacuumed(table.store, planned.last_commit, newest=planned.version)
    except DeltaMaintenanceError as error:
        return (f"where the next lite vacuum begins could not be recorded: {error.problem}",)
    return ()


def _millis(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)
