"""The `backfill-row-ids` operation: assigns row IDs to all files and enables row tracking.

The operation makes several commits, each of which leaves a valid table: one that adds support for
row tracking, one for each batch of files, and one that enables it. Other writers may commit in
between. A later run continues an interrupted one, and concurrent runs do no harm, because the
remaining work follows from the table alone.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime
from typing import Literal

from delta_maintenance.errors import (
    CommitConflictError,
    DeltaMaintenanceError,
    RefusedError,
    table_text,
)
from delta_maintenance.operations import checkpoint
from delta_maintenance.operations.backfill_row_ids import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.backfill_row_ids.batches import audit_row_ids
from delta_maintenance.operations.backfill_row_ids.commits import (
    ENABLE,
    SUPPORT,
    RowIdBackfill,
    commit_id,
    planned_support,
    require_unique,
    sources_of,
)
from delta_maintenance.operations.core.assessment import (
    AssessedOperation,
    EvaluationContext,
    block,
    not_due,
)
from delta_maintenance.operations.core.context import RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.holds.hold import commit_notes
from delta_maintenance.protocol.row_tracking.backfill import RowIdFindings
from delta_maintenance.table.commit.beside_writers import PASSES
from delta_maintenance.table.commit.idempotency import EarlierCommit, commit_after, commit_since
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table
from delta_maintenance.table.writable import require_proved

_logger = logging.getLogger(__name__)


def plan(
    snapshot: Snapshot,
    options: BackfillRowIdsOptions | None = None,
    context: RunContext | None = None,
) -> BackfillRowIdsPlan:
    """Plans the backfill of this snapshot. Reads its file actions once, and at most one footer.

    A table with row tracking enabled needs one, too, if files lack row IDs or the high-water mark
    is below a row ID, as after a writer or a checkpoint that lost it.

    Raises `UnsupportedFeatureError` or `RefusedError` if the table must not be written to, if its
    row tracking follows a draft or is suspended and the options do not allow a change of that, and
    `CorruptTableError` if it has duplicate row IDs.
    """
    context = context or RunContext()
    # Python callers may pass values of other types.
    options = (options or BackfillRowIdsOptions()).validated()
    require_proved(snapshot)
    sources = sources_of(snapshot)
    findings = audit_row_ids(snapshot)
    mark = findings.mark_above(sources.high_water_mark)
    raises_mark = mark > sources.high_water_mark
    if sources.is_enabled and not findings.lacking and not raises_mark:
        return _noop(snapshot, options, context.started, "row tracking is already enabled")
    earlier = _earlier(snapshot, options)
    if earlier is not None and earlier.operation_id.endswith(ENABLE):
        reason = f"an earlier run of this task enabled row tracking, as version {earlier.version}"
        return _noop(snapshot, options, context.started, reason)
    change = planned_support(
        snapshot, convert_draft=options.convert_draft, lift_suspension=options.lift_suspension
    )
    if earlier is not None and change is not None:
        raise RefusedError(
            f"row tracking is {sources.state.value}, although this task enabled its support in "
            f"version {earlier.version}: another writer has changed it since",
            table=snapshot.table,
            version=snapshot.version,
            remedy="to enable it nevertheless, run a new task",
        )
    require_unique(snapshot, findings)
    chosen, engine_reason = _engine(options, findings)
    batches = math.ceil(findings.lacking / options.files_per_commit)
    return BackfillRowIdsPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=context.started,
        is_noop=False,
        reason=f"without row IDs: {findings.lacking:,} of {count_text(findings.files, 'file')}; "
        + (f"the high-water mark {sources.high_water_mark} becomes {mark}; " if raises_mark else "")
        + engine_reason,
        options=options,
        engine=chosen,
        state=sources.state.value,
        changes_support=change is not None,
        num_files=findings.files,
        files_to_backfill=findings.lacking,
        rows_to_backfill=findings.rows,
        files_to_count=findings.uncounted,
        num_commits=(change is not None) + batches + 1,
        high_water_mark=mark,
        notes=(*_notes(sources.draft, change.unset if change else ()), *commit_notes(snapshot)),
    )


def apply(
    table: Table,
    plan: BackfillRowIdsPlan,
    context: RunContext | None = None,
    *,
    snapshot: Snapshot | None = None,
) -> BackfillRowIdsResult:
    """Applies the plan to the latest version of the table.

    `engine` reads footers instead of threads of this process. `snapshot` is the snapshot of the
    plan, if it is still in memory, which saves opening it again. Errors before the first commit are
    raised; later errors are in the Result.
    """
    context = context or RunContext()
    if plan.is_noop:
        return BackfillRowIdsResult(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            high_water_mark=plan.high_water_mark,
            notes=(plan.reason,),
        )
    context.require_engine(plan)
    run = _Run(table, plan, context)
    try:
        run.through(snapshot or table.snapshot())
    except DeltaMaintenanceError as error:
        if not run.backfill.commits:
            raise error.locate(table=table.uri) from error.__cause__
        run.problem = str(error.locate(table=table.uri))
    return run.result()


class _Run:
    """One run of `apply`, with its Result even if it fails."""

    def __init__(self, table: Table, plan: BackfillRowIdsPlan, context: RunContext) -> None:
        self.backfill = RowIdBackfill(table, plan, context)
        self.problem: str | None = None
        self._table = table
        self._plan = plan
        self._context = context
        self._version = plan.version
        self._mark = plan.high_water_mark
        self._checkpoint: str | None = None
        self._notes = list(plan.notes)

    def through(self, snapshot: Snapshot) -> None:
        """Runs all phases; sets `problem` if files remain whose rows cannot be counted."""
        options = self._plan.options
        if options.operation_id is not None:
            enabled = commit_id(options.operation_id, ENABLE)
            done = commit_after(snapshot, [enabled], self._plan.version)
            if done is not None:
                self._version = done.version
                return
        if self._plan.changes_support and self._plan.files_to_count:
            # The protocol is not raised for a backfill that cannot be completed.
            self.backfill.require_countable(snapshot)
        if self._plan.changes_support:
            snapshot = self.backfill.support(
                snapshot,
                convert_draft=options.convert_draft,
                lift_suspension=options.lift_suspension,
            )
        else:
            # Another writer may have suspended row tracking since the plan, which is respected.
            self.backfill.require_support(snapshot)
        lacking = self._plan.files_to_backfill > 0
        for _ in range(PASSES):
            if lacking:
                self.backfill.fill(snapshot)
                if options.checkpoint and self._checkpoint is None and self.backfill.batches:
                    self._write_checkpoint()
            # Opened again, to verify the table as readers find it.
            snapshot = self._table.snapshot()
            findings = audit_row_ids(snapshot)
            require_unique(snapshot, findings)
            self._version = snapshot.version
            self._mark = findings.mark_above(sources_of(snapshot).high_water_mark)
            if not findings.lacking:
                version = self.backfill.enable(snapshot, findings)
                if version is not None:
                    self._version = version
                    return
            elif self.backfill.problems:
                count = len(self.backfill.problems)
                self.problem = f"the rows of {count_text(count, 'file')} cannot be counted"
                return
            lacking = True
        raise CommitConflictError(
            "other writers keep adding files without row IDs",
            table=self._plan.table,
            version=self._version,
            remedy="find out which writer ignores the table feature rowTracking",
        )

    def result(self) -> BackfillRowIdsResult:
        """The Result of this run."""
        return BackfillRowIdsResult(
            table=self._plan.table,
            version=self._version,
            status="incomplete" if self.problem else "enabled",
            num_commits=self.backfill.commits,
            files_backfilled=self.backfill.files,
            high_water_mark=self._mark,
            checkpoint=self._checkpoint,
            problem=self.problem,
            uncounted=tuple(self.backfill.problems)[:100],
            notes=tuple(self._notes),
        )

    def _write_checkpoint(self) -> None:
        """Tries to write a checkpoint; the backfill does not depend on it."""
        context = self._context
        try:
            snapshot = self._table.snapshot()
            checkpoint_plan = checkpoint.plan(snapshot, context=RunContext.at(context.now()))
            if checkpoint_plan.engine == "spark":
                self._notes.append(f"no checkpoint was written: {checkpoint_plan.reason}")
                return
            written = checkpoint.apply(
                self._table,
                checkpoint_plan,
                context=RunContext(new_id=context.new_id),
                snapshot=snapshot,
            )
        except DeltaMaintenanceError as error:
            _logger.warning(
                "no checkpoint of %s was written: %s", table_text(self._table.uri), error
            )
            self._notes.append(f"no checkpoint was written: {error}")
        else:
            self._checkpoint = written.path


def _earlier(snapshot: Snapshot, options: BackfillRowIdsOptions) -> EarlierCommit | None:
    """Returns the later of the two commits of this task that another writer may have undone."""
    if options.operation_id is None:
        return None
    ids = [commit_id(options.operation_id, what) for what in (SUPPORT, ENABLE)]
    return commit_since(snapshot, ids, options.operation_since)


def _noop(
    snapshot: Snapshot, options: BackfillRowIdsOptions, now: datetime, reason: str
) -> BackfillRowIdsPlan:
    sources = sources_of(snapshot)
    return BackfillRowIdsPlan(
        table=snapshot.table,
        version=snapshot.version,
        planned_at=now,
        is_noop=True,
        reason=reason,
        options=options,
        state=sources.state.value,
        high_water_mark=sources.high_water_mark,
        notes=snapshot.warnings,
    )


def _engine(
    options: BackfillRowIdsOptions, findings: RowIdFindings
) -> tuple[Literal["local", "spark"], str]:
    if not findings.uncounted:
        return "local", "the statistics contain the row counts of all of them"
    work = f"the row counts of {findings.uncounted} must be read from footers"
    if options.engine == "auto" and findings.uncounted >= options.auto_spark_files:
        return "spark", f"{work}, which is too many for one process"
    return ("spark" if options.engine == "spark" else "local"), work


def _notes(draft: str | None, unset: tuple[str, ...]) -> tuple[str, ...]:
    notes = [f"{draft} is from a draft, and is converted"] if draft is not None else []
    return (*notes, *(f"the property {name} is unset" for name in unset))


def due(context: EvaluationContext) -> AssessedOperation | None:
    """Due until row tracking is enabled."""
    if not context.rule("row_tracking", bool):
        return None
    health, engine = context.health, context.rules.engine
    if health.row_tracking == "enabled":
        return not_due("backfill-row-ids", "row tracking is enabled")
    if health.row_tracking in ("suspended", "contradictory"):
        return block(
            "backfill-row-ids",
            f"row tracking is {health.row_tracking}; run backfill-row-ids manually with the "
            "option that changes this",
        )
    options = context.options(BackfillRowIdsOptions)
    commits = math.ceil(health.num_files / options.files_per_commit) + 2
    return AssessedOperation(
        operation="backfill-row-ids",
        status="due",
        reason=f"row tracking is {health.row_tracking}, and the policy requires it",
        engine="spark" if engine.prefer == "spark" else "local",
        options=options,
        bytes_to_read=health.bytes_to_open,
        requests=health.files_to_open + 3 * commits,
    )
