"""The maintenance of tables as assets: operations that are due, or one operation on demand.

A step of a run maintains one table or several; each table has its own asset. The decisions are made
in `delta_maintenance.policies`.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of configs as types.

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import Field

from delta_maintenance import clock
from delta_maintenance.operations.core import registry
from delta_maintenance_dagster import budgets
from delta_maintenance_dagster.health_checks import HealthThresholds
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.spark_resource import DeltaSparkResource, SparkDrivers
from delta_maintenance_dagster.step_resources import Context, SharedState, StepResources
from delta_maintenance_dagster.table_run import FinishedRun, TableRun, run_side_by_side
from delta_maintenance_dagster.tables import MAINTENANCE, DeltaTable, with_keys

_ASKED_FOR = registry.names()
_BY_POLICY = tuple(record.name for record in registry.policy_operations())
_IMPLICIT_JOB = "__ASSET_JOB"
_AUTOMATION_TAGS = ("dagster/from_automation_condition", "dagster/asset_evaluation_id")
_SHOWN = 3


def _required_options() -> str:
    """Lists the options without which an operation cannot run."""
    return " ".join(
        f"{record.name} needs options such as `{json.dumps(record.example)}`."
        for record in registry.operations()
        if record.must_set
    )


RETRY_POLICY = dg.RetryPolicy(
    max_retries=2, delay=60, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""For temporary failures: an unavailable store, or a commit that another writer made first."""


class MaintenanceConfig(dg.Config):
    """The configuration of a step in the launchpad. By default, a run does all due operations."""

    operation: str | None = Field(
        default=None, description=f"Only this, due or not: {', '.join(_ASKED_FOR)}."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Fields of the operation's Options that override the policy, such as "
            f"`{{retention: P14D}}` of a vacuum. {_required_options()}"
        ),
    )
    plan_only: bool = Field(
        default=False, description="Only show the plan and its reason; change nothing."
    )
    approve: list[str] = Field(
        default_factory=list,
        description=(
            "Operations that are approved whatever their plans, if the policy requires an "
            "approval. The job of approvals runs exactly the plans that a run has shown."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings that all steps of maintenance share."""

    name: str = "delta_maintenance"
    """The name of the definitions."""
    thresholds: HealthThresholds | None = None
    """The thresholds for health checks in each run; None for no checks."""
    retry_policy: dg.RetryPolicy = RETRY_POLICY
    pool: str | None = None
    """A pool of the instance that limits how many steps run at the same time."""
    with_other_assets: bool = False
    """Whether the tables are maintained by *Materialize all*, together with other assets."""
    approval_job: str | None = None
    """The job that runs approved plans, if there is one."""
    state: SharedState | None = None
    """Where failures are acknowledged, and who is told of new ones."""


def build_maintenance_asset(
    table: DeltaTable,
    *,
    storage: Reference[DeltaStorageResource],
    spark: Reference[DeltaSparkResource],
    thresholds: HealthThresholds | None = None,
    group_name: str = "delta_maintenance",
    retry_policy: dg.RetryPolicy = RETRY_POLICY,
) -> dg.AssetsDefinition:
    """The asset for the maintenance of a table. The asset of the table itself is never
    materialised.

    With `thresholds`, each run also evaluates the health checks of the table.
    """
    return build_maintenance_step(
        [table],
        name=f"{table.op_name}__maintenance",
        resources=StepResources.for_all([table], storage=storage, spark=spark),
        group_name=group_name,
        settings=StepSettings(thresholds=thresholds, retry_policy=retry_policy),
    )


def build_maintenance_step(
    tables: Sequence[DeltaTable],
    *,
    name: str,
    resources: StepResources,
    group_name: str = "delta_maintenance",
    settings: StepSettings | None = None,
) -> dg.AssetsDefinition:
    """The assets for the maintenance of several tables, which one step reads side by side, and
    changes one after the other.

    A run may select some of them. A table that fails does not stop the others. `name` is the name
    of the step in the launchpad.
    """
    settings = settings or StepSettings()

    @dg.multi_asset(
        name=name,
        specs=[table.maintenance_spec(group_name) for table in tables],
        can_subset=len(tables) > 1,
        pool=settings.pool,
        retry_policy=settings.retry_policy,
        required_resource_keys=required_keys(tables, resources, settings),
    )
    def maintenance(
        context: dg.AssetExecutionContext, config: MaintenanceConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        if not settings.with_other_assets and _among_others(context):
            context.log.info("skipped: this run materializes other assets; run the job instead")
            return
        _check(config)
        selected = context.selected_asset_keys
        # A person waits for other runs.
        state = settings.state if config.operation is None and not config.plan_only else None
        runs = table_runs(
            context,
            [table for table in tables if table.maintenance_key in selected],
            resources,
            settings,
            approval_job=settings.approval_job,
            state=state,
        )
        failed: list[FinishedRun] = []
        ended: list[FinishedRun] = []
        try:
            if config.operation is None:
                runs = budgets.within_budgets(runs)
            with closing(run_side_by_side(runs, lambda run: _work(run, config))) as finished_runs:
                for run, finished in finished_runs:
                    ended.append(finished)
                    run.report(finished, settings.thresholds)
                    if finished.problem is not None:
                        failed.append(finished)
                    # A plan materialises nothing. Dagster keeps no output of failed steps, although
                    # completed work should be visible.
                    if finished.result.exit_status or config.plan_only:
                        key = run.table.maintenance_key
                        context.log_event(dg.AssetObservation(key, metadata=finished.facts))
                    else:
                        yield dg.MaterializeResult(
                            asset_key=run.table.maintenance_key, metadata=finished.facts
                        )
        except dg.DagsterExecutionInterruptedError as interrupt:
            # With only a retry policy, the same work would start again.
            raise dg.Failure(
                "the run was terminated; another run continues from there", allow_retries=False
            ) from interrupt
        if not config.plan_only:
            budgets.record_choice(runs, ended)
        if len(ended) > 1:
            context.log.info(sums_of(ended))
        if failed:
            raise failure_of(failed, of=len(runs))

    return with_keys(maintenance, tables)


def required_keys(
    tables: Sequence[DeltaTable], resources: StepResources, settings: StepSettings
) -> set[str]:
    """Returns the resource keys that a step on the tables needs."""
    state = set() if settings.state is None else settings.state.storage.keys
    return state.union(*(resources.of(table).keys for table in tables))


def table_runs(
    context: Context,
    tables: Sequence[DeltaTable],
    resources: StepResources,
    settings: StepSettings,
    *,
    approval_job: str | None,
    state: SharedState | None = None,
) -> list[TableRun]:
    """Returns the runs of a step on its tables, which share one search for clones, and take turns
    in changing them.
    """
    # Loads pyarrow, which loading definitions must not require.
    from delta_maintenance.policies.lanes import Turns

    clones = resources.clones(context, settings.name, settings.state)
    turns, drivers = Turns(), SparkDrivers()
    return [
        TableRun(
            context=context,
            table=table,
            resources=resources.of(table),
            approval_job=approval_job,
            clones=clones,
            turns=turns,
            drivers=drivers,
            state=state,
            outbox=settings.state,
        )
        for table in tables
    ]


def sums_of(ended: Sequence[FinishedRun]) -> str:
    """Returns what a step did on several tables, in one line."""
    from delta_maintenance.policies.approval import waiting_texts
    from delta_maintenance.policies.entries import PastRun, gain_texts

    runs = [PastRun.of(finished.result, None) for finished in ended]
    statuses = Counter(run.status.replace("-", " ") for run in runs)
    counts = ", ".join(f"{number:,} {status}" for status, number in statuses.most_common())
    waits = waiting_texts([plan for finished in ended for plan in finished.pending])
    return "; ".join(
        [f"{len(runs):,} tables: {counts}", *gain_texts(runs, now=clock.now()), *waits]
    )


def failure_of(failed: Sequence[FinishedRun], *, of: int) -> dg.Failure:
    """Returns the failure of a step in which some of `of` tables failed."""
    problems = [finished.problem or "" for finished in failed]
    if of == 1:
        text, facts = problems[0], failed[0].facts
    else:
        rest_text = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        text = f"{len(failed)} of {of} tables: {'; '.join(problems[:_SHOWN])}{rest_text}"
        facts = {
            finished.table.policy.name: dg.MetadataValue.text(p)
            for finished, p in zip(failed, problems, strict=True)
        }
    retryable = all(finished.result.retryable for finished in failed)
    return dg.Failure(text, metadata=facts, allow_retries=retryable)


def _work(run: TableRun, config: MaintenanceConfig) -> FinishedRun:
    if config.operation is not None:
        return run.on_demand(config.operation, config.options, plan_only=config.plan_only)
    return run.due(approve=config.approve, plan_only=config.plan_only)


def _check(config: MaintenanceConfig) -> None:
    """Raises `Failure` for an invalid configuration."""
    for name in config.approve:
        _require_one_of(_BY_POLICY, name, "is not an operation of policies")
    if config.operation is not None:
        _require_one_of(_ASKED_FOR, config.operation, "is no operation")
    elif config.options:
        raise dg.Failure(
            "options without an operation: name the operation for them", allow_retries=False
        )


def _among_others(context: dg.AssetExecutionContext) -> bool:
    """Whether a person materialises other assets, and these only because they are shown with them.

    Jobs and automation conditions select maintenance explicitly.
    """
    run = context.run
    if not run.job_name.startswith(_IMPLICIT_JOB) or set(_AUTOMATION_TAGS) & set(run.tags):
        return False
    selection = run.asset_selection
    return selection is None or any(key.path[-1] != MAINTENANCE for key in selection)


def _require_one_of(names: Sequence[str], name: str, problem: str) -> None:
    if name not in names:
        raise dg.Failure(f"{name!r} {problem}: there are {', '.join(names)}", allow_retries=False)
