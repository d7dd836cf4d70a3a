"""The `purge` operation: removes deleted rows and values of dropped columns from data files.

Each file with deleted rows or values of dropped columns is rewritten without them. Files are not
merged. Older versions of the table keep the old files until a vacuum deletes them. Rows keep their
order, row IDs and commit versions, and are proved equal before a commit, as in `optimize`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from delta_maintenance import clock
from delta_maintenance.clock import Clock, NewId, as_clock
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.purge.options import PurgeOptions, PurgePlan, PurgeResult
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.engine import BinEngine
from delta_maintenance.operations.rewriting.live_columns import DROPPED_COLUMNS
from delta_maintenance.operations.rewriting.planning import Survey
from delta_maintenance.operations.rewriting.verb import ApplySettings, RewriteVerb
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
    """Chooses the files to rewrite. Reads the log, and footers if columns were dropped.

    Raises `UnsupportedFeatureError` or `RefusedError` for tables that this release must not
    rewrite, and `InvalidRequestError` for an invalid condition.
    """
    return _VERB.plan(snapshot, options or PurgeOptions(), now=now)


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

    `surveyed` is the survey on which the plan is based, if the caller has it; it is not repeated.
    Errors before the first commit are raised, and so is a commit with an unknown outcome. The
    Result contains all other errors.
    """
    settings = ApplySettings(
        now=as_clock(now),
        new_id=new_id,
        engine=engine,
        progress=progress,
        surveyed=surveyed,
        sleep=sleep,
    )
    return _VERB.apply(table, plan, plan.options, settings)


def _rules(options: PurgeOptions, target_bytes: int) -> ChoiceRules:
    return ChoiceRules(
        target_bytes=target_bytes,
        small_bytes=0,
        merge_small=False,
        deleted_share=options.above_percent / 100,
        full=True,
    )


def _footer_reasons(options: PurgeOptions) -> Sequence[str]:
    return [DROPPED_COLUMNS] if options.dropped_columns else []


def _reason(fields: Mapping[str, Any]) -> str:
    if fields["is_noop"]:
        return "no live file has deleted rows or dropped columns"
    files = count_text(fields["files"], "file")
    rows = count_text(fields["deleted_rows"], "deleted row")
    return f"{files} with {size_text(fields['bytes'])} and {rows} are rewritten"


_VERB = RewriteVerb(
    plan_type=PurgePlan,
    result_type=PurgeResult,
    operation="REORG",
    parameters={"applyPurge": True},
    rules=_rules,
    footer_reasons=_footer_reasons,
    reason=_reason,
)

prepare = _VERB.prepare
