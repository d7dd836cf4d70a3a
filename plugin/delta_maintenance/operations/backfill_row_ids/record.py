"""The record of the operation `backfill-row-ids`."""

from __future__ import annotations

from delta_maintenance.operations.backfill_row_ids.options import (
    BackfillRowIdsOptions,
    BackfillRowIdsPlan,
    BackfillRowIdsResult,
)
from delta_maintenance.operations.core.facts import Facts
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
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


RECORD = OperationRecord(
    name="backfill-row-ids",
    title="Enable row tracking, with IDs for all rows",
    summary="assign row IDs to all files, and enable row tracking",
    description=(
        "Add support for row tracking to the table, commit its files again with row IDs, in "
        "batches, and enable row tracking when every live file has them. Other writers may "
        "commit in the meantime, and a later run continues an interrupted one."
    ),
    options=BackfillRowIdsOptions,
    plan=BackfillRowIdsPlan,
    result=BackfillRowIdsResult,
    code="delta_maintenance.operations.backfill_row_ids.operation",
    outcomes={
        "enabled": Outcome.DONE,
        "incomplete": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, changes_table=True),
    runs_on_corrupt=True,
    requires=("commit",),
    spark=SparkPart(engine="delta_maintenance.spark.footers:SparkFooters.of_job"),
    policy=PolicyPart(
        key="row_tracking",
        rule="bool",
        description="`true` gives row IDs to every file and enables row tracking, `false` disables "
        "it.",
        due="delta_maintenance.operations.backfill_row_ids.policy:due",
    ),
    reuses_snapshot=True,
    decisive=("state", "changes_support"),
    asks_for_approval=lambda plan: not plan.is_noop and plan.changes_support,
    planned_amounts=lambda plan: Amounts(commits=plan.num_commits),
    done_amounts=lambda result: Amounts(commits=result.num_commits),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
