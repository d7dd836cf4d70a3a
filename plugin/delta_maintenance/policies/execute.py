"""One operation of a policy: planned on the table as it is, held against limits, carried out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from delta_maintenance import clock
from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations import (
    add_constraint,
    backfill_row_ids,
    checkpoint,
    clean_log,
    compact_log,
    drop_feature,
    fsck,
    set_properties,
    upgrade_protocol,
    vacuum,
)
from delta_maintenance.operations.core.record import Record
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import CHANGING, DELETING, AnyOperation, Limits
from delta_maintenance.policies.limits import beyond_deletions, says_more_than_vacuum
from delta_maintenance.policies.models import AssessedOperation, OperationOutcome
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.table import Table


class SubmitToSpark(Protocol):
    """Runs one operation as a Spark job: its Result as JSON, with `plan_only` its Plan."""

    def __call__(
        self, table: PolicyTable, due: AssessedOperation, /, *, plan_only: bool = False
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the operations of one run share."""

    table: Table
    policy_table: PolicyTable
    submit: SubmitToSpark | None
    progress: Progress | None
    now: Callable[[], datetime]
    new_id: clock.NewId
    plans_on_spark: bool = False
    """Whether a plan that only a job can make is worth the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, how to carry it out, and what of it the limits are about."""

    plan: Record
    is_noop: bool
    apply: Callable[[], Record]
    for_spark: bool = False
    commits: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    looked_at: int | None = None
    """Files of which the deleted ones are a share."""


def carry_out(
    context: Context,
    due: AssessedOperation,
    *,
    commits_made: int,
    plan_only: bool,
    approved: ApprovedPlan | None = None,
) -> OperationOutcome:
    """Plans the operation, and unless that is all, applies the plan.

    A plan beyond the limits of the policy ends as `stopped`. With `approved` only what comes to
    that is applied, otherwise `RefusedError` is raised. Errors are those of the operation.
    """
    started = context.now()
    outcome = OperationOutcome(
        operation=due.operation, status="planned", reason=due.reason, started_at=started
    )
    if approved is not None:
        due = replace(due, options=approved.options(due.options))
    if due.engine == "spark":
        return _by_job(context, due, outcome, plan_only=plan_only, approved=approved)
    planned = _PLANNED[due.operation](context, due.options, started)
    # What is so already, perhaps by an earlier try, is left as it is: nobody has to agree to that.
    if approved is not None and not (planned.is_noop and due.operation in CHANGING):
        approved.require(planned.plan.to_json())
    beyond = _beyond(context.policy_table.rules.limits, planned, commits_made)
    if plan_only:
        reason = f"{due.reason}, but {beyond}" if beyond is not None else due.reason
        return replace(outcome, reason=reason, result=planned.plan.to_json())
    if beyond is not None:
        return _stopped(outcome, beyond, planned.plan.to_json())
    if planned.for_spark and not planned.is_noop:
        # A constraint knows no other engine, and no option for it.
        engine = {} if due.operation == "add-constraint" else {"engine": "spark"}
        spark = replace(due, engine="spark", options={**due.options, **engine})
        return _by_job(context, spark, outcome, plan_only=False, approved=None)
    return _ended(outcome, planned.apply().to_json())


def _by_job(
    context: Context,
    due: AssessedOperation,
    outcome: OperationOutcome,
    *,
    plan_only: bool,
    approved: ApprovedPlan | None,
) -> OperationOutcome:
    """The same on Spark, where the job makes its own plan: here is too little room for it.

    What is to be held against something is planned by a job before.
    """
    outcome = replace(outcome, engine="spark")
    limits = context.policy_table.rules.limits
    held = approved is not None or (due.operation in DELETING and says_more_than_vacuum(limits))
    if plan_only and not context.plans_on_spark:
        return replace(outcome, reason=f"{due.reason}; the job plans it")
    if plan_only or held:
        plan = _on_spark(context, due, plan_only=True)
        if plan_only:
            return replace(outcome, result=plan)
        if approved is not None:
            approved.require(plan)
        files = plan.get("files") or 0
        looked_at = files + (plan.get("live_files") or 0)
        beyond = beyond_deletions(limits, files, plan.get("bytes") or 0, looked_at=looked_at)
        if beyond is not None:
            return _stopped(outcome, beyond, plan)
    return _ended(outcome, _on_spark(context, due))


def _stopped(outcome: OperationOutcome, beyond: str, plan: Mapping[str, Any]) -> OperationOutcome:
    return replace(
        outcome,
        status="stopped",
        reason=f"{beyond}; look at the plan, then raise the limit or run it by hand",
        result=dict(plan),
        exit_status=RefusedError.exit_status,
    )


def _on_spark(
    context: Context, due: AssessedOperation, *, plan_only: bool = False
) -> dict[str, Any]:
    if context.submit is None:
        or_else = (
            "by its verb of the command line"
            if due.operation == "add-constraint"
            else "set engine: {prefer: local} in the policy"
        )
        raise InvalidRequestError(
            f"{due.operation} is to run on Spark, which nobody here submits to",
            remedy=f"run it from an orchestrator, or {or_else}",
        )
    if plan_only:
        return dict(context.submit(context.policy_table, due, plan_only=True))
    return dict(context.submit(context.policy_table, due))


def _beyond(limits: Limits, planned: Planned, commits_made: int) -> str | None:
    """The first limit that the plan would break, as one clause."""
    if planned.is_noop:
        return None
    commits = planned.commits
    beyond = beyond_deletions(
        limits, planned.deleted_files, planned.deleted_bytes, looked_at=planned.looked_at
    )
    if beyond is not None:
        return beyond
    if limits.max_commits is not None and commits and commits_made + commits > limits.max_commits:
        return (
            f"the run would make {commits_made + commits} commits, and {limits.max_commits} are "
            "allowed"
        )
    return None


def _ended(outcome: OperationOutcome, result: dict[str, Any]) -> OperationOutcome:
    """What a Result comes to."""
    status = result.get("status")
    ended = replace(outcome, status="done", result=result, commits=_commits(result))
    if status == "nothing-to-do":
        return replace(ended, status="nothing-to-do")
    if status in ("partly", "incomplete"):
        return replace(
            ended, status="incomplete", reason=_why(result), exit_status=1, retryable=True
        )
    if status == "conflict":
        return replace(ended, status="failed", reason=_why(result), exit_status=4, retryable=True)
    if status == "violated":
        return replace(
            ended,
            status="failed",
            reason=result["problem"],
            exit_status=RefusedError.exit_status,
        )
    if status == "waiting":
        # No failure: the rest is only a matter of time.
        return replace(ended, status="incomplete", reason=_waits(result))
    if status == "corrupt":
        return replace(
            ended,
            status="failed",
            reason="the table is corrupt; see the findings, and repair it with fsck",
            exit_status=5,
        )
    if status == "failed":
        return replace(ended, status="failed", reason=_why(result), exit_status=5)
    return ended


def _why(result: Mapping[str, Any]) -> str:
    told = [result.get("problem"), result.get("stopped"), *(result.get("failures") or ())]
    told += [window.get("reason") for window in result.get("windows") or ()]
    first = next((text for text in told if text), "it could not be finished")
    return f"{first}; see the Result, and run again"


def _waits(result: Mapping[str, Any]) -> str:
    ready_at = result["ready_at"]
    when = "once history is old enough" if ready_at is None else f"at {ready_at} or later"
    return f"{result['feature']} is switched off, but not dropped yet: run it again {when}"


def _commits(result: Mapping[str, Any]) -> int:
    if result.get("status") == "committed":
        return 1
    ends = (result.get("start_version"), result.get("end_version"))
    one_by_one = len(result.get("commits") or ())
    return (
        (result.get("num_commits") or 0) + one_by_one + sum(version is not None for version in ends)
    )


def _upgrade_protocol(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    chosen = upgrade_protocol.UpgradeProtocolOptions.from_json(options)
    plan = upgrade_protocol.plan(context.table.snapshot(), chosen, now=now, new_id=context.new_id)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        apply=partial(
            upgrade_protocol.apply, context.table, plan, now=context.now, new_id=context.new_id
        ),
        commits=1,
    )


def _set_properties(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    chosen = set_properties.SetPropertiesOptions.from_json(options)
    plan = set_properties.plan(context.table.snapshot(), chosen, now=now, new_id=context.new_id)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        apply=partial(
            set_properties.apply, context.table, plan, now=context.now, new_id=context.new_id
        ),
        commits=1,
    )


def _backfill_row_ids(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    snapshot = context.table.snapshot()
    chosen = backfill_row_ids.BackfillRowIdsOptions.from_json(options)
    plan = backfill_row_ids.plan(snapshot, chosen, now=now)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        for_spark=plan.engine == "spark",
        apply=partial(
            backfill_row_ids.apply,
            context.table,
            plan,
            snapshot=snapshot,
            progress=context.progress,
            now=context.now,
            new_id=context.new_id,
        ),
        commits=plan.num_commits,
    )


def _fsck(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    surveyed = fsck.survey(
        context.table, fsck.FsckOptions.from_json(options), now=now, progress=context.progress
    )
    return Planned(
        plan=surveyed.plan,
        is_noop=surveyed.plan.is_noop,
        for_spark=surveyed.plan.engine == "spark",
        apply=partial(
            fsck.apply,
            context.table,
            surveyed.plan,
            now=now,
            new_id=context.new_id,
            surveyed=surveyed,
            progress=context.progress,
        ),
    )


def _checkpoint(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    snapshot = context.table.snapshot()
    plan = checkpoint.plan(snapshot, checkpoint.CheckpointOptions.from_json(options), now=now)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        for_spark=plan.engine == "spark",
        apply=partial(
            checkpoint.apply,
            context.table,
            plan,
            snapshot=snapshot,
            new_id=context.new_id,
            progress=context.progress,
        ),
    )


def _compact_log(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    snapshot = context.table.snapshot()
    plan = compact_log.plan(snapshot, compact_log.CompactLogOptions.from_json(options), now=now)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        for_spark=plan.engine == "spark",
        apply=partial(
            compact_log.apply, context.table, plan, snapshot=snapshot, progress=context.progress
        ),
    )


def _clean_log(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    chosen = clean_log.CleanLogOptions.from_json(options)
    plan = clean_log.plan(context.table.snapshot(), chosen, now=now)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        # The plan has taken its time: its hour begins with `now`, and the clocks are compared now.
        apply=lambda: clean_log.apply(
            context.table,
            plan,
            now=context.now(),
            new_id=context.new_id,
            progress=context.progress,
        ),
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def _vacuum(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    chosen = vacuum.VacuumOptions.from_json(options)
    surveyed = vacuum.survey(context.table.snapshot(), chosen, now=now)
    plan = surveyed.plan
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        apply=lambda: vacuum.apply(
            context.table,
            plan,
            now=context.now(),
            new_id=context.new_id,
            surveyed=surveyed,
            progress=context.progress,
        ),
        commits=2 * plan.logs_commits,
        deleted_files=plan.files,
        deleted_bytes=plan.bytes,
        looked_at=plan.files + plan.live_files,
    )


def _drop_feature(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    _require("drop-feature", options, {"feature": "deletionVectors"})
    chosen = drop_feature.DropFeatureOptions.from_json(options)
    plan = drop_feature.plan(context.table.snapshot(), chosen, now=now, new_id=context.new_id)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        apply=partial(
            drop_feature.apply,
            context.table,
            plan,
            now=context.now,
            new_id=context.new_id,
            progress=context.progress,
        ),
        commits=plan.num_commits,
        deleted_files=sum(group.count for group in plan.groups),
        deleted_bytes=sum(group.bytes for group in plan.groups),
    )


def _add_constraint(context: Context, options: Mapping[str, Any], now: datetime) -> Planned:
    _require("add-constraint", options, {"name": "positive", "expression": "quantity > 0"})
    chosen = add_constraint.AddConstraintOptions.from_json(options)
    plan = add_constraint.plan(context.table.snapshot(), chosen, now=now, new_id=context.new_id)
    return Planned(
        plan=plan,
        is_noop=plan.is_noop,
        for_spark=True,
        # Of a plan that does nothing; the others are the job's.
        apply=partial(add_constraint.apply, context.table, plan),
        commits=1,
    )


def _require(
    operation: AnyOperation, options: Mapping[str, Any], example: Mapping[str, str]
) -> None:
    """No policy says what these are about, so that whoever asks has to."""
    missing = [name for name in example if name not in options]
    if missing:
        raise InvalidRequestError(
            f"{operation} lacks the option {' and the option '.join(missing)}",
            remedy=f"give options such as {json.dumps(example)}",
        )


_PLANNED: Mapping[AnyOperation, Callable[[Context, Mapping[str, Any], datetime], Planned]] = {
    "upgrade-protocol": _upgrade_protocol,
    "set-properties": _set_properties,
    "backfill-row-ids": _backfill_row_ids,
    "fsck": _fsck,
    "checkpoint": _checkpoint,
    "compact-log": _compact_log,
    "clean-log": _clean_log,
    "vacuum": _vacuum,
    "drop-feature": _drop_feature,
    "add-constraint": _add_constraint,
}
