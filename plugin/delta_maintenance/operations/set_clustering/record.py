"""The record of the operation `set-clustering`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.operation import Amounts, Effects, OperationRecord
from delta_maintenance.operations.set_clustering.options import (
    SetClusteringOptions,
    SetClusteringPlan,
    SetClusteringResult,
)
from delta_maintenance.operations.table_change import facts as change_facts
from delta_maintenance.operations.table_change.facts import (
    DECISIVE,
    OUTCOMES,
    commits_of,
    conclusion,
    planned_amounts,
    raises_protocol,
)


def plan_facts(plan: SetClusteringPlan) -> Facts:
    """The columns before and after, the protocol, and the clients that lose access."""
    return change_facts.plan_facts(plan) | {
        "clustered by": ", ".join(plan.columns_before) or "no columns",
        "will be clustered by": ", ".join(plan.columns_after) or "no columns",
        "statistics to compute": _files(plan.files_to_recompute, plan.bytes_to_open),
    }


def result_facts(result: SetClusteringResult) -> Facts:
    """The new clustering columns."""
    removed = "no columns" if result.status == "committed" else None
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "clustered by": result.columns or removed,
        "statistics computed": count_text(result.files_recomputed, "file")
        if result.files_recomputed
        else None,
        "added features": result.added_features,
        "problem": result.problem,
        "notes": result.notes,
    }


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')} with {size_text(size)}" if files else None


RECORD = OperationRecord(
    name="set-clustering",
    title="Set clustering columns",
    summary="set or remove the clustering columns of a table",
    description=(
        "Set the columns by which the rows of a table are clustered, or remove them, in one commit "
        "that adds the features which clustering needs. No data file is changed. Statistics that "
        "files lack of a new column are computed and committed first."
    ),
    prints="Prints the result; --dry-run prints the plan and the clients that would lose access.",
    options=SetClusteringOptions,
    plan=SetClusteringPlan,
    result=SetClusteringResult,
    code="delta_maintenance.operations.set_clustering.operation",
    outcomes=OUTCOMES,
    effects=Effects(commits=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("by", "none"),
    decisive=(*DECISIVE, "columns_before", "columns_after"),
    asks_for_approval=raises_protocol,
    planned_amounts=lambda plan: Amounts(
        commits=planned_amounts(plan).commits + plan.statistics_commits
    ),
    done_amounts=lambda result: commits_of(result.status),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
