"""The record of the operation `drop-feature`."""

from __future__ import annotations

from delta_maintenance.operations.core.facts import Facts, instant_text, size_text
from delta_maintenance.operations.core.operation import Amounts, Effects, OperationRecord
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.drop_feature.options import (
    DropFeatureOptions,
    DropFeaturePlan,
    DropFeatureResult,
)
from delta_maintenance.operations.table_change.facts import cut_off_text, protocol_text


def plan_facts(plan: DropFeaturePlan) -> Facts:
    """Returns the facts of a plan: the steps, their effects, and the affected clients."""
    before, after = plan.protocol_before, plan.protocol_after
    memory = max((step.memory_bytes for step in plan.steps), default=0)
    return {
        "table": plan.table,
        "version": plan.version,
        "ends": plan.ends,
        "ready at": instant_text(plan.ready_at),
        "reason": plan.reason,
        "protocol": protocol_text(before),
        "becomes": None if after == before else protocol_text(after),
        "steps": [f"{step.kind}: {step.detail}" for step in plan.steps],
        "memory": f"at most {size_text(memory)}" if memory else None,
        "in the way": plan.history_traces,
        "opened to": plan.opened_to,
        "cut off": [cut_off_text(cut) for cut in plan.cut_off],
        "notes": plan.notes,
    }


def result_facts(result: DropFeatureResult) -> Facts:
    """Returns the facts of a result: the commits and the completed steps."""
    return {
        "table": result.table,
        "version": result.version,
        "status": result.status,
        "protocol": None if result.protocol is None else protocol_text(result.protocol),
        "ready at": instant_text(result.ready_at),
        "commits": [f"{commit.version}: {commit.kind}" for commit in result.commits],
        "checkpoints": ", ".join(map(str, result.checkpoints)),
        "oldest version": result.cleaned.oldest_version if result.cleaned else None,
        "notes": result.notes,
    }


def planned_amounts(plan: DropFeaturePlan) -> Amounts:
    """Returns the number of commits of all steps, and of log files to be deleted."""
    return Amounts(
        commits=plan.num_commits,
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def done_amounts(result: DropFeatureResult) -> Amounts:
    """Returns the numbers of commits and of deleted log files."""
    cleaned = result.cleaned.groups if result.cleaned is not None else ()
    return Amounts(
        commits=len(result.commits),
        deleted_files=sum(group.deleted for group in cleaned),
        deleted_bytes=sum(group.bytes for group in cleaned),
    )


def conclusion(result: DropFeatureResult, outcome: Outcome) -> Conclusion:
    """Returns the conclusion of a result, and from when another run can drop the feature."""
    if outcome is not Outcome.WAITING:
        return Conclusion(outcome=outcome)
    ready = instant_text(result.ready_at)
    when = "once the notes no longer name a reason" if ready is None else f"at {ready} or later"
    if result.held:
        when = (
            f"{when if ready else ''} once nothing holds these versions, of which keep-version "
            f"--release ends kept ones: {', '.join(map(str, result.held))}"
        ).strip()
    return Conclusion(
        outcome=outcome,
        problem=f"{result.feature} is switched off, but not dropped yet",
        remedy=f"run again {when}",
    )


RECORD = OperationRecord(
    name="drop-feature",
    title="Drop a table feature",
    summary="remove a table feature, so that more clients can use the table",
    description=(
        "Disable a table feature, remove its traces from the table, verify in the log that none "
        "is left, and drop the feature from the protocol. Older versions are kept and protected "
        "from clients that would misread them, or are deleted. Another run completes an "
        "interrupted one."
    ),
    options=DropFeatureOptions,
    plan=DropFeaturePlan,
    result=DropFeatureResult,
    code="delta_maintenance.operations.drop_feature.operation",
    outcomes={
        "dropped": Outcome.DONE,
        "waiting": Outcome.WAITING,
        "nothing-to-do": Outcome.NOTHING_TO_DO,
    },
    effects=Effects(commits=True, deletes=True, changes_table=True),
    requires=("change-metadata",),
    subjects=("feature",),
    # Without the steps, because an interrupted run leaves fewer steps.
    decisive=("ends", "protocol_before", "protocol_after", "oldest_version", "groups"),
    asks_for_approval=lambda plan: plan.ends != "nothing-to-do",
    planned_amounts=planned_amounts,
    done_amounts=done_amounts,
    plan_facts=plan_facts,
    result_facts=result_facts,
    conclusion_of_result=conclusion,
)
