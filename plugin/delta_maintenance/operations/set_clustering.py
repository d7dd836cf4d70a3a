"""Sets or removes the clustering columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_maintenance.lazy import lazy_names
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.flags import option
from delta_maintenance.operations.core.operation import Amounts, Effects, OperationRecord
from delta_maintenance.operations.table_change.documents import (
    DECISIVE,
    OUTCOMES,
    ChangeOptions,
    ChangePlan,
    ChangeResult,
    change_facts,
    commits_of,
    conclusion,
    planned_amounts,
    raises_protocol,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.table_change.set_clustering import apply, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringOptions(ChangeOptions):
    """The clustering columns to set."""

    by: tuple[str, ...] = option(
        (),
        "the clustering columns, at most 4, such as country or address.city",
        metavar="COLUMN",
        group="common",
        example="customer_id",
    )
    """They replace the current ones. Dots separate the names of nested columns; names with dots are
    in backticks."""
    none: bool = option(
        False, "remove all clustering columns; files keep the order of their rows", group="common"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringPlan(ChangePlan):
    """The planned change, and the clients that lose access."""

    options: SetClusteringOptions
    columns_before: tuple[str, ...] = ()
    """The current clustering columns, by logical names."""
    columns_after: tuple[str, ...] = ()
    joins: bool = False
    """Whether there are new clustering columns, of which every file must have statistics."""
    files_to_recompute: int = 0
    """Files whose statistics are computed first, because those of a new column are missing."""
    bytes_to_open: int = 0
    """The size of these files. Far fewer bytes are read if footers are sufficient."""
    statistics_commits: int = 0
    """The estimated number of commits with statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClusteringResult(ChangeResult):
    """The change that was made."""

    columns: tuple[str, ...] = ()
    """The new clustering columns; empty if nothing was committed."""
    files_recomputed: int = 0
    """Files with new statistics, which stay if the change is not made."""


def plan_facts(plan: SetClusteringPlan) -> Facts:
    """The columns before and after, the protocol, and the clients that lose access."""
    return change_facts(plan) | {
        "clustered by": ", ".join(plan.columns_before) or "no columns",
        "will be clustered by": ", ".join(plan.columns_after) or "no columns",
        "statistics to compute": _files(plan.files_to_recompute, plan.bytes_to_open),
    }


def result_facts(result: SetClusteringResult) -> Facts:
    """The new clustering columns."""
    removed = "no columns" if result.status == "committed" else None
    return {
        "clustered by": result.columns or removed,
        "statistics computed": count_text(result.files_recomputed, "file")
        if result.files_recomputed
        else None,
        "added features": result.added_features,
        "problem": result.problem,
    }


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')} with {size_text(size)}" if files else None


RECORD = OperationRecord(
    name="set-clustering",
    title="Set clustering columns",
    purpose="table",
    summary="set or remove the clustering columns",
    description=(
        "Set the columns by which the rows of a table are clustered, or remove them, in one commit "
        "that adds the features which clustering needs. No data file is changed. Statistics that "
        "files lack of a new column are computed and committed first."
    ),
    prints="Prints the result; --dry-run prints the plan and the clients that would lose access.",
    options=SetClusteringOptions,
    plan=SetClusteringPlan,
    result=SetClusteringResult,
    code="delta_maintenance.operations.table_change.set_clustering",
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

__getattr__, __dir__ = lazy_names(
    __name__, f"{__package__}.table_change", set_clustering="apply plan"
)
