"""The job that lists the waiting plans, and runs those that are approved, exactly as shown."""

# Without `from __future__ import annotations`: Dagster reads the annotations of configs as types.

from collections.abc import Sequence
from contextlib import closing
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
from delta_maintenance_dagster.table_run import FinishedRun, TableRun, run_side_by_side
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import PendingPlan


class ApprovalConfig(dg.Config):
    """The plans to approve. Without plans, the job lists what waits."""

    plans: list[str] = Field(
        default_factory=list, description="IDs of plans, as runs, checks and this job list them."
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

    The launchpad takes the IDs of plans; without them, the metadata of the run lists all waiting
    plans, with a link that opens the launchpad with this list. A plan whose effect has changed
    fails, and nothing is changed; the next run of maintenance plans again.
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
        waiting = _waiting_plans(context, config, tables)
        if not config.plans:
            all_plans = [*chain.from_iterable(waiting.values())]
            inbox = metadata.of_inbox(all_plans)
            context.log.info(str(inbox["waiting"].value))
            context.add_output_metadata(inbox | metadata.of_approval(name, context.run, all_plans))
            return
        plans = {
            uri: [p for p in of_table if p.id in config.plans] for uri, of_table in waiting.items()
        }
        # A retry of the step does not find those that it has already run.
        for missing in sorted(
            {*config.plans} - {p.id for p in chain.from_iterable(plans.values())}
        ):
            context.log.warning(f"the plan {missing} does not wait any more; it is left out")
        tables_with_plans = [table for table in tables if plans.get(table.uri)]
        runs = table_runs(context, tables_with_plans, resources, settings, approval_job=name)
        if not runs:
            raise dg.Failure(
                f"no plan among {config.plans[:3]} waits for an approval on these tables; launch "
                "this job without configuration, and give the IDs of plans that it lists",
                allow_retries=False,
            )
        failed: list[FinishedRun] = []

        def work(run: TableRun) -> FinishedRun:
            return run.run_approved([waiting.plan for waiting in plans[run.table.uri]])

        with closing(run_side_by_side(runs, work)) as finished_runs:
            for run, finished in finished_runs:
                key = run.table.maintenance_key
                run.report(finished, settings.thresholds)
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


def _waiting_plans(
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
