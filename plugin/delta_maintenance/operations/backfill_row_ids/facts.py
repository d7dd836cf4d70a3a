"""Facts about a row ID backfill, for people."""

from __future__ import annotations

from delta_maintenance.operations.backfill_row_ids.options import (
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.outcome import Conclusion, Outcome

_SHOWN = 10
"""The number of uncountable files shown; the Result contains more."""


def plan_facts(plan: BackfillRowIdsPlan) -> Facts:
    """The number of files and commits, and the reason."""
    facts: dict[str, object] = {"table": plan.table, "version": plan.version}
    if not plan.is_noop:
        facts |= {
            "row tracking": plan.state,
            "files": plan.num_files,
            "files to backfill": plan.files_to_backfill,
            "rows to backfill": plan.rows_to_backfill,
            "footers to read": plan.files_to_count or None,
            "engine": plan.engine,
            "commits": plan.num_commits,
        }
    return facts | {"reason": plan.reason, "notes": plan.notes}


def result_facts(result: BackfillRowIdsResult) -> Facts:
    """The completed work."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "commits": result.num_commits,
        "files backfilled": result.files_backfilled,
        "high-water mark": result.high_water_mark,
        "checkpoint": result.checkpoint,
        "problem": result.problem,
        "uncounted": result.uncounted[:_SHOWN],
        "notes": result.notes,
    }


def conclusion(result: BackfillRowIdsResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with the reason if row tracking could not be enabled."""
    if result.problem is None:
        return Conclusion(outcome=outcome)
    were = "commit was" if result.num_commits == 1 else "commits were"
    return Conclusion(
        outcome=outcome,
        problem=f"{result.num_commits} {were} made, then: {result.problem}",
        remedy="see the Result, and run again to continue",
    )
