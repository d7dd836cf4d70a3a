"""The record of the operation `expire`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, count_text, instant_text, size_text
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.expire.options import ExpireOptions, ExpirePlan, ExpireResult

_SHOWN = 10
"""The number of files shown; the JSON contains more."""
_FATES = {
    "leave": "left",
    "deletion-vectors": "read, and get deletion vectors",
    "rewrite": "read, and rewritten",
}


def plan_facts(plan: ExpirePlan) -> Facts:
    """Returns the facts of a plan: the limit, and the files by what is known of their rows."""
    mixed = plan.mixed_files + plan.unknown_files
    return {
        "table": plan.table,
        "version": plan.version,
        "expired": plan.predicate,
        "older than": instant_text(plan.delete_before),
        "files to remove": f"{plan.files:,} of {plan.live_files:,} ({size_text(plan.bytes)})",
        "rows to remove": plan.rows,
        "files with other rows": _files(plan.mixed_files, plan.mixed_bytes),
        "files without proof": _files(plan.unknown_files, plan.unknown_bytes),
        "files with other rows are": _FATES[plan.options.mixed] if mixed else None,
        "reason": plan.reason,
        "notes": plan.notes,
    }


def result_facts(result: ExpireResult) -> Facts:
    """Returns the facts of a result: the removed rows, and the files that were left."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "commits": result.num_commits or None,
        "removed files": _files(result.files, result.bytes),
        "files with deletion vectors": result.files_marked or None,
        "rewritten files": result.files_rewritten or None,
        "removed rows": result.rows or None,
        "files left": result.files_left or None,
        "changed by other writers": result.files_overtaken or None,
        "skipped": [f"{each.path}: {each.problem}" for each in result.skipped[:_SHOWN]],
        # The problem of a skipped file is shown once.
        "problem": None if result.skipped else result.problem,
        "notes": result.notes,
    }


def conclusion(result: ExpireResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a run, with the remedy if expired rows are left."""
    if result.status != "partly":
        return Conclusion(outcome=outcome)
    damaged = next((each for each in result.skipped if each.damaged), None)
    if damaged is not None:
        return Conclusion(
            outcome=outcome,
            problem=damaged.problem,
            file=damaged.path,
            remedy="restore the file, or see with fsck --deep what else is wrong; the other files "
            "are done",
        )
    return Conclusion(outcome=outcome, problem=result.problem, remedy="run again to continue")


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')} ({size_text(size)})" if files else None


RECORD = OperationRecord(
    name="expire",
    title="Expire old rows",
    summary="remove rows that are older than a limit",
    description=(
        "Remove rows from the newest version whose date or timestamp is older than a limit. Files "
        "all of whose rows are older, as partition values or bounds prove, are removed without "
        "being read. Files that also have other rows are left, get deletion vectors, or are "
        "rewritten. Rows with null stay. Older versions keep the rows until a vacuum."
    ),
    options=ExpireOptions,
    plan=ExpirePlan,
    result=ExpireResult,
    code="delta_maintenance.operations.expire.operation",
    outcomes={
        "expired": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True),
    requires=("rewrite-data",),
    subjects=("column", "older_than"),
    policy=PolicyPart(
        key="expire",
        rule="delta_maintenance.operations.expire.policy:ExpireRule",
        description="Removal of rows that are older than a limit.",
        due="delta_maintenance.operations.expire.policy:due",
    ),
    decisive=("delete_before", "files", "bytes", "mixed_files", "unknown_files", "paths_digest"),
    asks_for_approval=lambda plan: not plan.is_noop,
    planned_amounts=lambda plan: Amounts(
        commits=plan.commits,
        deleted_files=plan.files,
        deleted_bytes=plan.bytes,
        looked_at=plan.live_files,
    ),
    # The files stay until a vacuum.
    done_amounts=lambda result: Amounts(commits=result.num_commits),
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
    wrote=lambda result: result.num_commits > 0,
)
