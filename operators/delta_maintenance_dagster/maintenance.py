"""The maintenance of one table as an asset: operations that are due, or one operation on demand.

The decisions are made in `delta_maintenance.policies`.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of configs as types.

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core import registry
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance_dagster import memory, pools
from delta_maintenance_dagster.health import metadata
from delta_maintenance_dagster.health.checks import HealthThresholds, judge
from delta_maintenance_dagster.references import Reference
from delta_maintenance_dagster.resources import DeltaStorageResource
from delta_maintenance_dagster.spark.spark_resource import DeltaSparkResource
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance import Table
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.environment import RunEnvironment
    from delta_maintenance.policies.models import AssessedOperation, Assessment, LastRun, RunResult

_ASKED_FOR = registry.names()
_BY_POLICY = tuple(record.name for record in registry.policy_operations())


def _required_options() -> str:
    """Names the options without which an operation cannot run."""
    return " ".join(
        f"{record.name} needs options such as `{json.dumps(record.example)}`."
        for record in registry.operations()
        if record.required
    )


RETRY_POLICY = dg.RetryPolicy(
    max_retries=2, delay=60, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""For temporary failures: an unavailable store, or a commit that another writer made first."""


class MaintenanceConfig(dg.Config):
    """The configuration of a run in the launchpad. By default, a run does what is due."""

    operation: str | None = Field(
        default=None,
        description=f"Only this, due or not: {', '.join(_ASKED_FOR)}.",
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
            "Operations that are approved if the policy requires an approval. An operation that "
            "is requested by name needs no further approval."
        ),
    )


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
    storage = storage.named(table.policy.rules.storage.connection)
    spark = spark.named(table.policy.rules.spark.connection)

    @dg.asset(
        key=table.maintenance_key,
        deps=[table.key],
        description=(
            f"Maintenance of the Delta table `{table.uri}`: the operations that are due, in "
            "order. The launchpad accepts an operation, its options, and `plan_only`."
        ),
        group_name=group_name,
        kinds={"delta"},
        owners=table.owners,
        tags=table.tags,
        metadata={"dagster/uri": table.uri},
        pool=table.pool,
        retry_policy=retry_policy,
        required_resource_keys=storage.required | spark.required,
        # A plan materialises nothing.
        output_required=False,
    )
    def maintenance(
        context: dg.AssetExecutionContext, config: MaintenanceConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        pools.limit_to_one(context.instance, [table.pool])
        maintained = _Maintenance(
            context=context,
            table=table,
            storage=storage.resolve(context.resources),
            spark=spark.resolve(context.resources),
        )
        try:
            result = maintained.run(config)
        except dg.DagsterExecutionInterruptedError as interrupt:
            # A retry policy alone would start the same work again.
            raise dg.Failure(
                "the run was terminated; another run continues from there", allow_retries=False
            ) from interrupt
        if thresholds is not None:
            maintained.tell_checks(result, thresholds)
        facts = metadata.of_run(result)
        if result.exit_status:
            # Dagster keeps no output of failed steps, but completed work should be visible.
            context.log_event(dg.AssetObservation(table.maintenance_key, metadata=facts))
            raise dg.Failure(result.problem, metadata=facts, allow_retries=result.retryable)
        if config.plan_only:
            context.log_event(dg.AssetObservation(table.maintenance_key, metadata=facts))
        else:
            yield dg.MaterializeResult(metadata=facts)

    return maintenance


@dataclass(frozen=True, kw_only=True)
class _Maintenance:
    """One run on one table."""

    context: dg.AssetExecutionContext
    table: DeltaTable
    storage: DeltaStorageResource
    spark: DeltaSparkResource

    def run(self, config: MaintenanceConfig) -> "RunResult":
        """Runs as configured. Raises `Failure` for an invalid configuration."""
        # Imported here because it loads PyArrow; definitions must load fast.
        from delta_maintenance.policies.approval import Approvals
        from delta_maintenance.policies.run import run

        for name in config.approve:
            _require_one_of(_BY_POLICY, name, "is not an operation of policies")
        if config.operation is not None:
            _require_one_of(_ASKED_FOR, config.operation, "is no operation")
        last_runs = memory.recall(self.context.instance, self.table)
        opened = self._opened()
        if config.operation is not None:
            result = self._by_hand(opened, config, last_runs)
        else:
            if config.options:
                raise dg.Failure(
                    "options without an operation: name the operation for them",
                    allow_retries=False,
                )
            result = run(
                opened,
                self.table.policy,
                last_runs=last_runs,
                approvals=Approvals(
                    operations=[name for name in _BY_POLICY if name in config.approve]
                ),
                plan_only=config.plan_only,
                environment=self._environment(),
            )
        self._log(result)
        return result

    def tell_checks(self, result: "RunResult", thresholds: HealthThresholds) -> None:
        """Reports the health checks from the assessment of the run, without opening the table."""
        latest = result.after or result.before
        if latest is None:
            return
        for judgement in judge(latest, self.table, thresholds):
            self.context.log_event(judgement.evaluation(self.table))

    def _opened(self) -> "Table":
        try:
            return self.storage.open_table(self.table.policy)
        except DeltaMaintenanceError as error:
            raise dg.Failure(str(error), allow_retries=error.retryable) from error

    def _by_hand(
        self, opened: "Table", config: MaintenanceConfig, last_runs: "tuple[LastRun, ...]"
    ) -> "RunResult":
        """Runs one operation on demand, with the options of the policy."""
        from delta_maintenance.policies.on_demand import run_operation

        assert config.operation is not None
        return run_operation(
            opened,
            self.table.policy,
            config.operation,
            options=config.options,
            last_runs=last_runs,
            plan_only=config.plan_only,
            environment=self._environment(),
        )

    def _environment(self) -> "RunEnvironment":
        from delta_maintenance.policies.environment import RunEnvironment

        return RunEnvironment(submit=self._submit, progress=LoggedProgress(self.context.log))

    def _submit(
        self, policy_table: "PolicyTable", due: "AssessedOperation", *, plan_only: bool = False
    ) -> Mapping[str, Any]:
        from delta_maintenance.submission.job_spec import JobSpec

        rules = policy_table.rules
        options = due.options.to_json() if due.options is not None else {}
        spec = JobSpec.from_json(
            {
                "operation": due.operation,
                "table": policy_table.uri,
                "storage_options": self.storage.storage_options(rules.storage),
                "options": options,
                "plan_only": plan_only,
            }
        )
        try:
            return self.spark.run_job(spec, rule=rules.spark, context=self.context)
        except InvalidRequestError as error:
            raise error.located(table=policy_table.uri) from error.__cause__

    def _log(self, result: "RunResult") -> None:
        log = self.context.log
        for assessed in _operations(result.before):
            log.info(f"{assessed.operation}: {assessed.status}, {assessed.reason}")
        for outcome in result.outcomes:
            log.info(f"{outcome.operation} on {outcome.engine}: {outcome.status}; {outcome.reason}")
        log.info(f"{self.table.uri}: {result.status}")


def _require_one_of(known: Sequence[str], name: str, problem: str) -> None:
    if name not in known:
        raise dg.Failure(f"{name!r} {problem}: there are {', '.join(known)}", allow_retries=False)


def _operations(assessment: "Assessment | None") -> "tuple[AssessedOperation, ...]":
    return assessment.operations if assessment is not None else ()
