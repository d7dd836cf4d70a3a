"""Running one operation on demand, whether or not it is due.

The options are those of the policy, overridden by those of the request. The limits of the policy
apply; its hours and its approvals do not, because a person made the request. Operations without a
policy key only run this way, with all options in the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from delta_maintenance.errors import RefusedError
from delta_maintenance.operations.core.assessment import AssessedOperation, LastRun
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.given_options import read_options, without_empty
from delta_maintenance.operations.core.registry import AnyOperation, find
from delta_maintenance.policies.approval import NO_APPROVALS, Approvals, ApprovedPlan
from delta_maintenance.policies.assess import NewestSnapshots, assess_table
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.execute import Context, RunEnvironment, execute, measure_outcome
from delta_maintenance.policies.measuring import TableState
from delta_maintenance.policies.models import (
    Assessment,
    OperationOutcome,
    RunResult,
    RunStatus,
    updated_runs,
)
from delta_maintenance.policies.run import result_without_run
from delta_maintenance.table.read.table import Table

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
    operation: str,
    *,
    options: Mapping[str, Any] | None = None,
    last_runs: Sequence[LastRun] = (),
    plan_only: bool = False,
    approvals: Approvals = NO_APPROVALS,
    environment: RunEnvironment | None = None,
) -> RunResult:
    """Runs one operation on the table. Returns the same record as `policies.run`.

    `options` are fields of the operation's Options, which override those of the policy. With
    an approved plan, it runs only if its plan has the approved effect. Errors of the library are
    returned, not raised, except the `BusyError` of a lease.
    """
    environment = environment or RunEnvironment()
    snapshots = environment.snapshots or NewestSnapshots(table)
    now, record = environment.now, find(operation)
    started = now()
    reason = "requested manually" if approvals.by is None else f"approved by {approvals.by}"
    # One of another operation is refused.
    approved = next(iter(approvals.plans), None)

    def assess(
        rules: PolicyTable, runs: Sequence[LastRun], last_assessment: Assessment | None
    ) -> Assessment:
        previous = last_assessment.health if last_assessment is not None else environment.previous
        return assess_table(
            table, rules, now=now(), last_runs=runs, previous=previous, snapshots=snapshots
        )

    before = assess(policy_table, last_runs, None)
    # A table that cannot be read is what an operation on the table itself examines.
    if before.status == "failed" and record.takes == "snapshot":
        failure = result_without_run(before, last_runs=last_runs)
        return replace(failure, started_at=started, ended_at=now())

    requested: AssessedOperation | None = None

    with environment.claiming() as claim:
        context = Context(
            table=table,
            snapshots=snapshots,
            policy_table=policy_table,
            environment=environment,
            plans_on_spark=environment.submit is not None,
            claim=claim,
        )

        def work() -> OperationOutcome:
            nonlocal requested
            about = [run for run in last_runs if run.table_id in (None, snapshots.known_id)]
            if not plan_only and (held := record.is_held_by(about)) is not None:
                raise RefusedError(held, remedy="run fsck again after the repair")
            rules = policy_table.rules.asking_for(record.name)
            forced = assess(policy_table.model_copy(update={"rules": rules}), (), before)
            merged = _merge_options(policy_table, record, forced, options or {})
            requested = replace(merged, reason=reason)
            return execute(
                context, requested, commits_made=0, plan_only=plan_only, approved=approved
            )

        began = now()
        outcome = measure_outcome(
            context,
            work,
            lambda: OperationOutcome(
                operation=record.name,
                status="failed",
                reason=reason,
                started_at=began,
                engine=requested.engine if requested is not None else "local",
            ),
            bytes_of_deleted=table.store.bytes_of_deleted,
        )
    runs = tuple(last_runs)
    # Operations without a policy key are never due, however long ago they ran.
    if record.policy is not None and outcome.status not in ("planned", "stopped"):
        runs = updated_runs(outcome, runs, table_id=snapshots.known_id)
    after = None if plan_only else assess(policy_table, runs, before)
    outcome = replace(
        outcome,
        before=TableState.of(before.health),
        after=None if after is None else TableState.of(after.health),
        approved_by=approvals.by if outcome.was_done else None,
    )
    good = outcome.status in ("done", "nothing-to-do", "planned")
    return RunResult(
        name=policy_table.name,
        uri=policy_table.uri,
        status=_STATUSES.get(outcome.status, "blocked"),
        started_at=started,
        ended_at=now(),
        outcomes=(outcome,),
        before=before,
        after=after,
        last_runs=runs,
        problem=None if good else outcome.reason,
        exit_status=outcome.exit_status,
        retryable=outcome.retryable,
    )


def run_plans(
    table: Table,
    policy_table: PolicyTable,
    plans: Sequence[ApprovedPlan],
    *,
    approved_by: str | None = None,
    last_runs: Sequence[LastRun] = (),
    environment: RunEnvironment | None = None,
) -> RunResult:
    """Runs approved plans on the table, in order, each only if it still has the approved effect.

    `approved_by` names the person who approved them, if known. There must be at least one plan. A
    failed or incomplete operation ends the run.
    """
    results: list[RunResult] = []
    environment = environment or RunEnvironment()
    environment = replace(environment, snapshots=NewestSnapshots(table))
    for plan in plans:
        result = run_operation(
            table,
            policy_table,
            plan.operation,
            last_runs=last_runs,
            approvals=Approvals(plans=(plan,), by=approved_by),
            environment=environment,
        )
        results.append(result)
        last_runs = result.last_runs
        if result.status != "done":
            break
    first_result, last_result = results[0], results[-1]
    return replace(
        last_result,
        started_at=first_result.started_at,
        before=first_result.before,
        outcomes=tuple(outcome for result in results for outcome in result.outcomes),
    )


def _merge_options(
    table: PolicyTable, record: AnyOperation, assessment: Assessment, requested: Mapping[str, Any]
) -> AssessedOperation:
    """Merges the options of the request with those of the policy; empty ones are the policy's.

    Raises `InvalidRequestError` for unknown or missing options.
    """
    assessed = next(
        (operation for operation in assessment.operations if operation.operation == record.name),
        None,
    )
    by_policy = (
        assessed.options.to_json() if assessed is not None and assessed.options is not None else {}
    )
    if record.effects.changes_table:
        names = (n for n in ("other_writers", "quiet") if has_field(record.options, n))
        common = {name: getattr(table.rules, name) for name in names}
        by_policy = {**without_empty(common), **by_policy}
    requested_options: Any = read_options(record, {**by_policy, **without_empty(requested)})
    engine: Literal["local", "spark"] = assessed.engine if assessed is not None else "local"
    if "engine" in requested and requested_options.engine != "auto":
        engine = requested_options.engine
    return AssessedOperation(
        operation=record.name, status="due", reason="", engine=engine, options=requested_options
    )
