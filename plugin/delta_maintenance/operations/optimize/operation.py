"""The `optimize` operation: fewer and larger data files with the same rows.

Small files of a partition are merged, and files with another reason are rewritten in the same
pass. Rows keep their order, row IDs and commit versions. Before a commit the new files are read
back from storage, and the digest of their rows is compared with that of the rows that were read.
Other writers may add, delete and update rows at the same time.
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
from delta_maintenance.operations.optimize.options import (
    OptimizeOptions,
    OptimizePlan,
    OptimizeResult,
)
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.engine import BinEngine
from delta_maintenance.operations.rewriting.execution import RewriteExecution, carry_out
from delta_maintenance.operations.rewriting.footer_reasons import CODEC, INT96
from delta_maintenance.operations.rewriting.planning import Survey, plan_fields, survey
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

__all__ = ["OptimizeOptions", "OptimizePlan", "OptimizeResult", "apply", "plan", "prepare"]

_SMALL = 0.75
"""Files smaller than this share of the target are merged."""


def plan(
    snapshot: Snapshot,
    options: OptimizeOptions | None = None,
    *,
    now: datetime,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
) -> OptimizePlan:
    """Chooses the files to rewrite. Reads the log, and footers if an option asks for them.

    Raises `UnsupportedFeatureError` or `RefusedError` for tables that this release must not
    rewrite, and `InvalidRequestError` for an invalid condition.
    """
    options = (options or OptimizeOptions()).validated()
    return _plan(_survey(snapshot, options, now), options, now)


def apply(
    table: Table,
    plan: OptimizePlan,
    *,
    now: datetime | Clock = clock.now,
    new_id: NewId = clock.new_id,
    engine: BinEngine | None = None,
    progress: Progress | None = None,
    surveyed: Survey | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> OptimizeResult:
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
        "zOrderBy": [],
        "clusterBy": [],
        "auto": False,
    }
    execution = RewriteExecution(
        operation="OPTIMIZE",
        parameters=parameters,
        now=instants,
        new_id=new_id,
        engine=engine,
        progress=progress,
        sleep=sleep,
    )
    return carry_out(table, surveyed, options, OptimizeResult, execution)


def prepare(
    table: Table, options: OptimizeOptions, *, now: datetime, execution: Execution
) -> Prepared[OptimizePlan, OptimizeResult]:
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


def _survey(snapshot: Snapshot, options: OptimizeOptions, now: datetime) -> Survey:
    def rules(target_bytes: int) -> ChoiceRules:
        return ChoiceRules(
            target_bytes=target_bytes,
            small_bytes=int(target_bytes * _SMALL),
            deleted_share=options.deleted_percent / 100,
            min_files=options.min_files,
            full=options.full,
        )

    wanted = [name for name, on in ((INT96, options.int96), (CODEC, options.other_codecs)) if on]
    try:
        return survey(
            snapshot,
            options,
            rules,
            now=now,
            target_bytes=options.target_bytes,
            footer_reasons=wanted,
        )
    except DeltaMaintenanceError as error:
        raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__


def _plan(surveyed: Survey, options: OptimizeOptions, now: datetime) -> OptimizePlan:
    fields = plan_fields(surveyed)
    if fields["is_noop"]:
        reason = "no file is worth rewriting"
    else:
        files = count_text(fields["files"], "file")
        after = f"{fields['files_after']:,} with {size_text(fields['bytes_after'])}"
        reason = f"{files} with {size_text(fields['bytes'])} become about {after}"
    return OptimizePlan(**fields, planned_at=now, reason=reason, options=options)


def _nothing(plan: OptimizePlan) -> OptimizeResult:
    return OptimizeResult(
        table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
    )
