"""The job that runs approved plans: exactly those that a run has shown."""

# Without `from __future__ import annotations`: Dagster reads the annotations of configs as types.

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from delta_maintenance_dagster import memory
from delta_maintenance_dagster.maintenance import RETRY_POLICY, StepSettings, failure_of
from delta_maintenance_dagster.table_run import FinishedRun, Resources, TableRun, all_of
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import PendingPlan


class ApprovalConfig(dg.Config):
    """The plans to approve."""

    run_id: str = Field(
        description="The run that was `blocked`. Its plans run exactly as its metadata shows them."
    )
    tables: list[str] = Field(
        default_factory=list, description="Names or addresses of tables; by default all of the run."
    )
    operations: list[str] = Field(
        default_factory=list, description="Such as `vacuum`; by default all of the run."
    )


def build_approval_job(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    resources: Resources,
    settings: StepSettings | None = None,
) -> dg.JobDefinition:
    """A job that runs the plans of a blocked run, each only if it still has the same effect.

    The launchpad asks for the ID of that run. A plan whose effect has changed fails, and nothing is
    changed; the next run of maintenance plans again.
    """
    settings = settings or StepSettings()
    each = {table.uri: resources.of(table) for table in tables}

    @dg.op(
        name="run_approved_plans",
        description="Runs the plans that wait for an approval after a run.",
        retry_policy=RETRY_POLICY,
        pool=settings.pool,
        required_resource_keys=set().union(*(found.required for found in each.values())),
    )
    def run_approved_plans(context: dg.OpExecutionContext, config: ApprovalConfig) -> None:
        plans = _approved(context, config, tables)
        clones = resources.clones(context.resources)
        runs = [
            TableRun(
                context=context,
                table=table,
                resources=each[table.uri],
                approval_job=name,
                clones=clones,
            )
            for table in tables
            if table.uri in plans
        ]
        if not runs:
            raise dg.Failure(
                f"no plan of run {config.run_id} waits for an approval on these tables; give the "
                "ID of a run whose metadata lists waiting plans",
                allow_retries=False,
            )
        failed: list[FinishedRun] = []

        def work(run: TableRun) -> FinishedRun:
            return run.approved([waiting.plan for waiting in plans[run.table.uri]])

        for run, finished in all_of(runs, work):
            key = run.table.maintenance_key
            if settings.thresholds is not None:
                run.evaluate_checks(finished, settings.thresholds)
            if finished.problem is not None:
                failed.append(finished)
                context.log_event(dg.AssetObservation(key, metadata=finished.facts))
            else:
                context.log_event(dg.AssetMaterialization(key, metadata=finished.facts))
        if failed:
            raise failure_of(failed, of=len(runs))

    @dg.job(name=name, description="Runs approved plans exactly as a run has shown them.")
    def approve() -> None:
        run_approved_plans()

    return approve


def _approved(
    context: dg.OpExecutionContext, config: ApprovalConfig, tables: Sequence[DeltaTable]
) -> dict[str, list["PendingPlan"]]:
    """Returns the approved plans that are still waiting, by the address of their table.

    A retry of the step does not find those that it has already run.
    """
    shown = {
        (plan.uri, plan.operation): plan
        for left in memory.recall_run(context.instance, config.run_id)
        for plan in left.pending
    }
    found: dict[str, list[PendingPlan]] = {}
    for table in tables:
        if config.tables and not {table.policy.name, table.uri} & set(config.tables):
            continue
        for waiting in memory.recall(context.instance, table).pending:
            plan = shown.get((table.uri, waiting.operation))
            if plan is None or not plan.plan.same_as(waiting.plan):
                continue
            if not config.operations or plan.operation in config.operations:
                found.setdefault(table.uri, []).append(plan)
    return found
