"""The record of the operation `clean-log`."""

from __future__ import annotations

from delta_maintenance.operations.clean_log.options import (
    CleanLogOptions,
    CleanLogPlan,
    CleanLogResult,
)
from delta_maintenance.operations.core.facts import Facts, count_text, size_text
from delta_maintenance.operations.core.operation import (
    Amounts,
    Effects,
    OperationRecord,
    PolicyPart,
)
from delta_maintenance.operations.core.outcome import Conclusion, Outcome


def plan_facts(plan: CleanLogPlan) -> Facts:
    """The groups of files to delete, and the files that are kept."""
    facts: dict[str, object] = {
        "table": plan.table,
        "version": plan.version,
        "oldest version": plan.oldest_version,
        "reason": plan.reason,
    }
    facts["held by"] = [str(each) for each in plan.held]
    for group in plan.groups:
        facts[group.kind] = [
            f"{count_text(group.count, 'file')} ({size_text(group.bytes)}): {group.because}",
            group.first if group.count == 1 else f"{group.first} to {group.last}",
            *([f"{group.kept} stays: {group.kept_because}"] if group.kept else ()),
        ]
    if plan.needs_classic_name:
        facts["first"] = (
            "the cut-off checkpoint is also written under a classic name, for clients without V2"
        )
    facts["notes"] = plan.notes
    return facts


def result_facts(result: CleanLogResult) -> Facts:
    """The deleted files of each group."""
    facts: dict[str, object] = {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "oldest version": result.oldest_version,
    }
    facts["held by"] = [str(each) for each in result.held]
    for group in result.groups:
        facts[group.kind] = f"{group.deleted:,} of {group.planned:,} deleted"
    facts["compatible checkpoint"] = result.compatible_checkpoint
    facts["_last_checkpoint updated"] = result.hint_updated or None
    facts["failures"] = result.failures
    facts["notes"] = result.notes
    return facts


def planned_amounts(plan: CleanLogPlan) -> Amounts:
    """The files to delete."""
    return Amounts(
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def done_amounts(result: CleanLogResult) -> Amounts:
    """The deleted files."""
    return Amounts(
        deleted_files=sum(group.deleted for group in result.groups),
        deleted_bytes=sum(group.bytes for group in result.groups),
    )


def conclusion(result: CleanLogResult, outcome: Outcome) -> Conclusion:
    """Names the first file that could not be deleted."""
    if not result.failed:
        return Conclusion(outcome=outcome)
    return Conclusion(
        outcome=outcome,
        problem=f"{count_text(result.failed, 'file')} could not be deleted, first "
        f"{result.failures[0]}; no later file was touched",
        remedy="see the Result, and run again",
    )


RECORD = OperationRecord(
    name="clean-log",
    title="Clean up the log",
    summary="delete history that the table's retention no longer requires",
    description=(
        "Delete the files of the log that are older than the newest checkpoint at or before the "
        "log retention boundary: commits, checkpoints of every kind, checksums, compactions, "
        "unreferenced sidecars, and leftovers of failed writers. That checkpoint is read before "
        "anything is deleted, and the remaining log is complete whenever the command stops."
    ),
    options=CleanLogOptions,
    plan=CleanLogPlan,
    result=CleanLogResult,
    code="delta_maintenance.operations.clean_log.operation",
    outcomes={
        "cleaned": Outcome.DONE,
        "partly": Outcome.INCOMPLETE,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(deletes=True),
    requires=("clean-log",),
    policy=PolicyPart(
        key="clean_log",
        rule="delta_maintenance.operations.clean_log.policy:CleanLogRule",
        description="Deletion of history.",
        due="delta_maintenance.operations.clean_log.policy:due",
    ),
    report="every file to delete",
    decisive=("cut_off_instant", "oldest_version", "groups"),
    asks_for_approval=lambda plan: bool(plan.groups),
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
