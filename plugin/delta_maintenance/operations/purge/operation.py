"""The `purge` operation: data files without deleted rows and without values of dropped columns.

Each file with deleted rows, or with values of dropped columns, is rewritten without them. Files are
not merged. Older versions of the table keep the old files until a vacuum deletes them. Rows keep
their order, row IDs and commit versions, and are proved equal before a commit, as by `optimize`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from delta_maintenance import clock
from delta_maintenance.clock import Clock, NewId, as_clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.operations.core.execution import Execution, Prepared
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.purge.options import (
    PurgeOptions,
    PurgePlan,
    PurgeResult,
)
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.engine import BinEngine
from delta_maintenance.operations.rewriting.execution import RewriteExecution, carry_out
from delta_maintenance.operations.rewriting.footer_reasons import DROPPED_COLUMNS
from delta_maintenance.operations.rewriting.planning import Survey, plan_fields, survey
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

__all__ = ["PurgeOptions", "PurgePlan", "PurgeResult", "apply", "plan", "prepare"]


def plan(
    snapshot: Snapshot,
    options: PurgeOptions | None = None,
    *,
    now: datetime,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
) -> PurgePlan:
    """Chooses the files to rewrite. Reads the log, and footers if an option asks for them.

    Raises `UnsupportedFeatureError` or `RefusedError` for tables that this release must not
    rewrite, and `InvalidRequestError` for an invalid condition.
    """
    options = (options or PurgeOptions()).validated()
    return _plan(_survey(snapshot, options, now), options, now)


def apply(
    table: Table,
    plan: PurgePlan,
    *,
    now: datetime | Clock = clock.now,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
    surveyed: Survey | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> PurgeResult:
    """Chooses files of the latest version by the options of the plan, rewrites and commits them.

    `surveyed` is the survey from which the plan was made, if the caller has it: it is used as it
    is. Errors are raised before the first commit, and for a commit with an unknown outcome;
    otherwise the Result contains them.
    """
    if plan.is_noop:
        return _nothing(plan)
    options, instants = plan.options, as_clock(now)
    surveyed = surveyed or _survey(table.snapshot(), options, instants())
    if not surveyed.choice.bin_count:
        return _nothing(_plan(surveyed, options, instants()))
    parameters: dict[str, Any] = {
        "predicate": [] if options.where is None else [options.where],
        "applyPurge": True,
    }
    execution = RewriteExecution(
        operation="REORG",
        parameters=parameters,
        now=instants,
        new_id=new_id,
        engine=engine,
        progress=progress,
        sleep=sleep,
    )
    return carry_out(table, surveyed, options, PurgeResult, execution)


def prepare(
    table: Table, options: PurgeOptions, *, now: datetime, execution: Execution
) -> Prepared[PurgePlan, PurgeResult]:
    """Plans, and keeps the survey for `apply`."""
    options = options.validated()
    surveyed = _survey(execution.snapshot_of(table), options, now)
    planned = _plan(surveyed, options, now)
    carry = partial(
        apply,
        table,
        planned,
        now=execution.now,
        new_id=execution.new_id,
        engine=execution.engine,
        progress=execution.progress,
        surveyed=surveyed,
    )
    return Prepared(plan=planned, apply=carry)


def _survey(snapshot: Snapshot, options: PurgeOptions, now: datetime) -> Survey:
    def rules(target_bytes: int) -> ChoiceRules:
        return ChoiceRules(
            target_bytes=target_bytes,
            small_bytes=0,
            merge_small=False,
            deleted_share=options.above_percent / 100,
            full=True,
        )

    wanted = [DROPPED_COLUMNS] if options.dropped_columns else []
    try:
        return survey(snapshot, options, rules, now=now, footer_reasons=wanted)
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__


def _plan(surveyed: Survey, options: PurgeOptions, now: datetime) -> PurgePlan:
    fields = plan_fields(surveyed)
    if fields["is_noop"]:
        reason = "no live file holds deleted rows or dropped columns"
    else:
        files = count_text(fields["files"], "file")
        rows = count_text(fields["deleted_rows"], "deleted row")
        reason = f"{files} with {size_text(fields['bytes'])} and {rows} are rewritten"
    return PurgePlan(**fields, planned_at=now, reason=reason, options=options)


def _nothing(plan: PurgePlan) -> PurgeResult:
    return PurgeResult(
        table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
    )
