"""The job that lists the waiting plans, and runs those that are approved, exactly as shown."""

# Without `from __future__ import annotations`: Dagster reads the annotations of configs as types.

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from delta_maintenance_dagster import memory, metadata
from delta_maintenance_dagster.maintenance import (
    RETRY_POLICY,
    StepSettings,
    failure_of,
    required_keys,
    table_runs,
)
from delta_maintenance_dagster.step_resources import StepResources
from delta_maintenance_dagster.table_run import FinishedRun, TableRun, all_of
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import PendingPlan


class ApprovalConfig(dg.Config):
    """The plans to approve. Without a run and without plans, the job lists what waits."""

    run_id: str | None = Field(
        default=None,
        description="A run that was `blocked`. Its plans run exactly as its metadata shows them.",
    )
    plans: list[str] = Field(
        default_factory=list,
        description="IDs of plans of any runs and tables, as the job lists them.",
    )
    tables: list[str] = Field(
        default_factory=list, description="Names or addresses of tables; by default all."
    )
    operations: list[str] = Field(
        default_factory=list, description="Such as `vacuum`; by default all."
    )


def build_approval_job(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    resources: StepResources,
    settings: StepSettings | None = None,
) -> dg.JobDefinition:
    """A job that runs approved plans, each only if it still has the same effect.

    The launchpad takes the IDs of plans, or of a blocked run; without them, the metadata of the run
    lists all waiting plans. A plan whose effect has changed fails, and nothing is changed; the next
    run of maintenance plans again.
    """
    settings = settings or StepSettings()

    @dg.op(
        name="run_approved_plans",
        description="Runs the plans that wait for an approval after a run.",
        retry_policy=RETRY_POLICY,
        pool=settings.pool,
        required_resource_keys=required_keys(tables, resources, settings),
    )
    def run_approved_plans(context: dg.OpExecutionContext, config: ApprovalConfig) -> None:
        if config.run_id is None and not config.plans:
            waiting = _chosen(context, config, tables)
            listed = metadata.of_inbox([*chain.from_iterable(waiting.values())], name)
            context.log.info(str(listed["waiting"].value))
            context.add_output_metadata(listed)
            return
        plans = _plans_to_run(context, config, tables)
        tables_with_plans = [table for table in tables if table.uri in plans]
        runs = table_runs(context, tables_with_plans, resources, settings, approval_job=name)
        if not runs:
            choice = f"of run {config.run_id}" if config.run_id else f"among {config.plans[:3]}"
            raise dg.Failure(
                f"no plan {choice} waits for an approval on these tables; launch this job without "
                "configuration, and give the IDs of plans that it lists",
                allow_retries=False,
            )
        failed: list[FinishedRun] = []

        def work(run: TableRun) -> FinishedRun:
            return run.run_approved([waiting.plan for waiting in plans[run.table.uri]])

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


def _plans_to_run(
    context: dg.OpExecutionContext, config: ApprovalConfig, tables: Sequence[DeltaTable]
) -> dict[str, list["PendingPlan"]]:
    """Returns the approved plans that are still waiting, by the address of their table.

    A retry of the step does not find those that it has already run.
    """
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.address import identity_of

    waiting = _chosen(context, config, tables)
    if config.run_id is None:
        named = {uri: [p for p in plans if p.id in config.plans] for uri, plans in waiting.items()}
        missing = set(config.plans) - {plan.id for plan in chain.from_iterable(named.values())}
        for gone in sorted(missing):
            context.log.warning(f"the plan {gone} does not wait any more; it is left out")
        return {uri: plans for uri, plans in named.items() if plans}
    of_run = {
        (identity_of(plan.uri), plan.operation): plan
        for state in memory.recall_run(context.instance, config.run_id)
        for plan in state.pending
        if not config.plans or plan.id in config.plans
    }
    approved: dict[str, list[PendingPlan]] = {}
    for uri, plans in waiting.items():
        for waiting_plan in plans:
            plan = of_run.get((identity_of(uri), waiting_plan.operation))
            if plan is not None and plan.plan.same_as(waiting_plan.plan):
                approved.setdefault(uri, []).append(plan)
    return approved


def _chosen(
    context: dg.OpExecutionContext, config: ApprovalConfig, tables: Sequence[DeltaTable]
) -> dict[str, list["PendingPlan"]]:
    """Returns the waiting plans of the chosen tables and operations, by the address of the
    table.
    """
    return {
        table.uri: [
            plan
            for plan in memory.recall(context.instance, table).pending
            if not config.operations or plan.operation in config.operations
        ]
        for table in tables
        if not config.tables or any(table.policy.answers_to(text) for text in config.tables)
    }
