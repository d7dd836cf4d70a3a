"""The record of the operation `vacuum`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
    SparkPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.vacuum.options import VacuumOptions, VacuumPlan, VacuumResult


def plan_facts(plan: VacuumPlan) -> Facts:
    """Returns the facts of a plan: the files to delete and the files to keep, with reasons."""
    facts: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
        "engine": plan.engine,
        "retention": plan.retention,
        "reason": plan.reason,
        "files": f"{plan.files:,} of {plan.listed:,} ({size_text(plan.bytes)})",
    }
    for group in plan.groups:
        facts[group.reason] = f"{count_text(group.count, 'file')} ({size_text(group.bytes)})"
    facts["empty directories"] = plan.directories or None
    facts["archived"] = [
        f"{count_text(each.count, 'file')} ({size_text(each.bytes)}) in {each.storage_class}: "
        + ("deleted, too" if plan.options.archived == "delete" else "kept")
        for each in plan.archived
    ]
    facts["held by"] = [str(each) for each in plan.held]
    facts["kept"] = [f"{group.count:,}: {group.why}" for group in plan.kept]
    facts["needs --allow-large-delete"] = plan.large
    facts["commits"] = "VACUUM START and VACUUM END" if plan.logs_commits else None
    facts["notes"] = plan.notes
    return facts


def result_facts(result: VacuumResult) -> Facts:
    """Returns the facts of a result: the deleted files, and those that were not deleted."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "deleted": f"{count_text(result.deleted, 'file')} ({size_text(result.bytes)})",
        "empty directories": result.directories or None,
        "referenced again before deletion": result.spared or None,
        "stopped": result.stopped,
        "failures": result.failures,
        "referenced again after deletion": result.lost,
        "held by": [str(each) for each in result.held],
        "VACUUM START": result.start_version,
        "VACUUM END": result.end_version,
        "notes": result.notes,
    }


def planned_amounts(plan: VacuumPlan) -> Amounts:
    """The files to delete, as a share of these and the live files."""
    return Amounts(
        commits=2 * plan.logs_commits,
        deleted_files=plan.files,
        deleted_bytes=plan.bytes,
        looked_at=plan.files + plan.live_files,
    )


def done_amounts(result: VacuumResult) -> Amounts:
    """The deleted files."""
    commits = (result.start_version, result.end_version)
    return Amounts(
        commits=sum(version is not None for version in commits),
        deleted_files=result.deleted,
        deleted_bytes=result.bytes,
    )


def conclusion(result: VacuumResult, outcome: Outcome) -> Conclusion:
    """The conclusion of a result, with files that were not deleted or should not have been
    deleted.
    """
    if result.lost:
        return Conclusion(
            outcome=Outcome.CORRUPT,
            problem=f"{count_text(len(result.lost), 'file')} referenced again after deletion",
            file=result.lost[0],
            remedy="restore them from a backup, or the table to a version without them",
        )
    if result.status != "partly":
        return Conclusion(outcome=outcome)
    problem = f"{count_text(result.failed, 'file')} could not be deleted"
    if result.stopped is not None:
        problem = f"{count_text(result.deleted, 'file')} deleted, then: {result.stopped}"
    elif result.failures:
        problem += f", first {result.failures[0]}"
    return Conclusion(outcome=outcome, problem=problem, remedy="see the Result, and run again")


RECORD = OperationRecord(
    name="vacuum",
    title="Vacuum",
    summary="delete files that no retained version of the table needs",
    description=(
        "Delete data files, deletion vectors and change data files that no retained version of "
        "the table refers to, if they are older than the retention themselves. The log is read "
        "again before every few thousand deletions."
    ),
    prints="Prints the result; --dry-run prints the exact list of files and the reasons.",
    options=VacuumOptions,
    plan=VacuumPlan,
    result=VacuumResult,
    code="delta_maintenance.operations.vacuum.operation",
    outcomes={
        "vacuumed": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True),
    requires=("vacuum",),
    spark=SparkPart(engine="delta_maintenance.spark.vacuum:SparkVacuum.of_job", plans_by_job=True),
    policy=PolicyPart(
        key="vacuum",
        rule="delta_maintenance.operations.vacuum.policy:VacuumRule",
        description="Deletion of data files.",
        due="delta_maintenance.operations.vacuum.policy:due",
        before="delta_maintenance.operations.vacuum.policy:before",
    ),
    report="every file with its size, its time and the reason",
    # The reasons are not compared: a checkpoint turns an expired tombstone into an unreferenced
    # file.
    decisive=("delete_before", "files", "bytes", "paths_digest"),
    asks_for_approval=lambda plan: bool(plan.files or plan.directories),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
