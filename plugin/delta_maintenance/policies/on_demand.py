"""One operation because somebody asks for it, whether or not it is due.

It is set up as the policy sets it up, with the options of whoever asks laid over that. The limits
of the policy hold; its hours, and its wish for an approval, do not: somebody is there. Two
operations have no rule in any policy, `drop-feature` and `add-constraint`: whoever asks says all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.assess import assess_table
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import (
    CHANGING,
    OPERATIONS,
    AnyOperation,
    CheckpointRule,
    CleanLogRule,
    CompactLogRule,
    FsckRule,
    Rules,
    VacuumRule,
)
from delta_maintenance.policies.execute import Context, SubmitToSpark, carry_out
from delta_maintenance.policies.models import (
    AssessedOperation,
    Assessment,
    LastRun,
    OperationOutcome,
    RunResult,
)
from delta_maintenance.policies.run import RunStatus
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.table import Table

_REASON = "asked for by hand"
_STATUSES: Mapping[str, RunStatus] = {
    "done": "done",
    "nothing-to-do": "done",
    "planned": "planned",
    "incomplete": "incomplete",
    "failed": "failed",
    "stopped": "stopped",
}


def run_operation(
    table: Table,
    policy_table: PolicyTable,
    operation: AnyOperation,
    *,
    options: Mapping[str, Any] | None = None,
    last_runs: Sequence[LastRun] = (),
    plan_only: bool = False,
    approved: ApprovedPlan | None = None,
    submit: SubmitToSpark | None = None,
    progress: Progress | None = None,
    now: Callable[[], Any] = clock.now,
    new_id: clock.NewId = clock.new_id,
) -> RunResult:
    """Runs one operation on the table. The answer is that of `policies.run`.

    `options` are fields of the operation's Options, over those that follow from the policy. With
    `approved` it runs only where its plan comes to what was approved. The library's errors are in
    the answer, and never raised.
    """
    started = now()

    def assess(rules: PolicyTable, runs: Sequence[LastRun], known: Assessment | None) -> Assessment:
        previous = known.health if known is not None else None
        return assess_table(table, rules, now=now(), last_runs=runs, previous=previous)

    before = assess(policy_table, last_runs, None)
    result = RunResult(
        name=policy_table.name,
        uri=policy_table.uri,
        status="failed",
        started_at=started,
        ended_at=started,
        before=before,
        last_runs=tuple(last_runs),
    )
    if before.status == "failed":
        return replace(
            result,
            ended_at=now(),
            problem=before.problem,
            exit_status=before.exit_status,
            retryable=before.retryable,
        )
    asked = _asked(
        policy_table,
        operation,
        assess(_forced(policy_table, operation), (), before),
        options or {},
    )
    context = Context(
        table=table,
        policy_table=policy_table,
        submit=submit,
        progress=progress,
        now=now,
        new_id=new_id,
        plans_on_spark=submit is not None,
    )
    outcome = _outcome(context, asked, plan_only=plan_only, approved=approved)
    runs = tuple(last_runs)
    # The others are never due, however long ago they ran.
    if operation in OPERATIONS and outcome.status not in ("planned", "stopped"):
        runs = (*(run for run in runs if run.operation != operation), _last_run(outcome))
    after = None if plan_only else assess(policy_table, runs, before)
    good = outcome.status in ("done", "nothing-to-do", "planned")
    return replace(
        result,
        status=_STATUSES.get(outcome.status, "blocked"),
        ended_at=now(),
        outcomes=(outcome,),
        after=after,
        last_runs=runs,
        problem=None if good else outcome.reason,
        exit_status=outcome.exit_status,
        retryable=outcome.retryable,
    )


def _outcome(
    context: Context,
    asked: AssessedOperation,
    *,
    plan_only: bool,
    approved: ApprovedPlan | None,
) -> OperationOutcome:
    started = context.now()
    try:
        outcome = carry_out(context, asked, commits_made=0, plan_only=plan_only, approved=approved)
    except DeltaMaintenanceError as error:
        outcome = OperationOutcome(
            operation=asked.operation,
            status="failed",
            reason=str(error.located(table=context.table.uri)),
            started_at=started,
            engine=asked.engine,
            exit_status=error.exit_status,
            retryable=error.retryable,
        )
    return replace(outcome, seconds=(context.now() - started).total_seconds())


def _asked(
    table: PolicyTable,
    operation: AnyOperation,
    assessment: Assessment,
    options: Mapping[str, Any],
) -> AssessedOperation:
    """The operation as the policy would have it if it were due, and over that what was asked."""
    found = next((each for each in assessment.operations if each.operation == operation), None)
    by_policy = found.options if found is not None else {}
    writers = table.rules.other_writers
    if operation in CHANGING and writers is not None:
        by_policy = {"other_writers": writers, **by_policy}
    engine = found.engine if found is not None else "local"
    # Those without a rule have no such option: their plans are made here, and refuse it.
    named = options.get("engine") if operation in OPERATIONS else None
    return AssessedOperation(
        operation=operation,
        status="due",
        reason=_REASON,
        engine=named if named in ("local", "spark") else engine,
        options={**by_policy, **options},
    )


def _forced(table: PolicyTable, operation: AnyOperation) -> PolicyTable:
    """The policy as it would be if it asked for this operation at once, and for nothing else."""
    rules, at_once = table.rules, {"every": timedelta()}
    asked: dict[AnyOperation, dict[str, Any]] = {
        "upgrade-protocol": {"protocol": rules.protocol},
        "set-properties": {"protocol": rules.protocol},
        "backfill-row-ids": {"row_tracking": True},
        "fsck": {"fsck": (rules.fsck or FsckRule()).model_copy(update=at_once)},
        "checkpoint": {
            "checkpoint": (rules.checkpoint or CheckpointRule()).model_copy(
                update={"max_commits": 1}
            )
        },
        "compact-log": {"compact_log": rules.compact_log or CompactLogRule()},
        "clean-log": {"clean_log": (rules.clean_log or CleanLogRule()).model_copy(update=at_once)},
        "vacuum": {"vacuum": (rules.vacuum or VacuumRule()).model_copy(update=at_once)},
    }
    kept = {
        name: getattr(rules, name)
        for name in ("engine", "spark", "storage", "other_writers", "limits")
    }
    return table.model_copy(update={"rules": Rules(**kept, **asked.get(operation, {}))})


def _last_run(outcome: OperationOutcome) -> LastRun:
    result = outcome.result or {}
    return LastRun(
        operation=outcome.operation,
        at=outcome.started_at,
        version=result.get("version", -1),
        status=result.get("status", "failed"),
    )
