"""One run on one table: what is due, one operation on demand, or approved plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_maintenance import clock
from delta_maintenance.errors import BusyError, DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core import replace_flags
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance_dagster import memory, metadata
from delta_maintenance_dagster.commits import DATA_VERSION, describe_version, read_versions
from delta_maintenance_dagster.health_checks import HealthThresholds, judge
from delta_maintenance_dagster.leases import InstanceLease
from delta_maintenance_dagster.spark_resource import SparkDrivers
from delta_maintenance_dagster.step_ledger import StepLedger
from delta_maintenance_dagster.step_resources import Context, SharedState, StepResources
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import ApprovedPlan, PendingPlan
    from delta_maintenance.policies.assess import NewestSnapshots
    from delta_maintenance.policies.budget.selection import TableBudget
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.execute import RunEnvironment
    from delta_maintenance.policies.lanes import Turns
    from delta_maintenance.policies.models import AssessedOperation, Assessment, RunResult

WAIT_SECONDS = 3600.0
"""The maximum time for which a run waits for another run on the same table."""
PAUSE_SECONDS = 10.0
"""The interval in seconds for checking whether the other run has ended."""
_PERSON = "user"
"""The tag of a run with the person who launched it, which only Dagster+ sets by itself."""
_ASKERS = (_PERSON, "dagster/schedule_name", "dagster/sensor_name")
"""The tags of a run that say who started it."""
_FEW_FILES = 10_000
"""The number of files up to which a snapshot is kept until the table has its turn."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The result of a run on a table, and its state for the next run."""

    table: DeltaTable
    result: RunResult
    pending: tuple[PendingPlan, ...]
    approval: metadata.Metadata
    """How to approve the pending plans."""
    history: metadata.Metadata = field(default_factory=dict)
    """The last rows of the table in the ledger."""
    acknowledged: str | None = None
    """Who knows of the failure, and for how long; None if nobody does."""
    observation: dg.AssetObservation | None = None
    """The table after the run; None if it could not be read."""

    @property
    def facts(self) -> metadata.Metadata:
        """The metadata of the materialization, observation or failure."""
        state = memory.Memory(last_runs=self.result.last_runs, pending=self.pending)
        run_facts = metadata.of_run(self.result, self.pending)
        if self.acknowledged is not None:
            run_facts = {**run_facts, "acknowledged": dg.MetadataValue.text(self.acknowledged)}
        return {**run_facts, **self.history, **self.approval, **state.to_metadata()}

    @property
    def problem(self) -> str | None:
        """One line about a failed run; None if it did not fail, or the failure is acknowledged."""
        if not self.result.exit_status or self.acknowledged is not None:
            return None
        return replace_flags(self.result.problem or f"{self.table.label}: {self.result.status}")


@dataclass(frozen=True)
class _TableLog:
    """The log of a step, with the table in each line."""

    log: Any
    label: str

    def info(self, message: str, /, *arguments: object) -> None:
        self.log.info(f"%s: {message}", self.label, *arguments)


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """Runs operations on one table for a step."""

    context: Context
    table: DeltaTable
    resources: StepResources
    approval_job: str | None = None
    """The job that runs approved plans."""
    clones: PolicyClones | None = None
    """The search for clones, which the runs of a step share."""
    turns: Turns | None = None
    """The turns of the tables of the step, in which they are changed."""
    drivers: SparkDrivers = field(default_factory=SparkDrivers)
    """The Spark drivers of the step."""
    state: SharedState | None = None
    """Where failures are acknowledged; None for runs for which a person waits."""
    outbox: SharedState | None = None
    """Where rows are kept until the ledger of the policy can be written."""
    budget: TableBudget | None = None
    """What the budget of the policy lets the table have; None without one."""
    assessed: Assessment | None = None
    """The assessment for the choice within the budget; None for a table that was not read."""
    snapshots: NewestSnapshots | None = None
    """Those of this assessment."""

    def assess(self) -> TableRun:
        """Returns the run with an assessment of its table, which is stored for other steps."""
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.policies.assess import assess_table

        last_state = memory.recall(self.context.instance, self.table)
        try:
            snapshots = self._open()
        except Exception:
            # The run itself reports it.
            return self
        assessment = assess_table(
            snapshots.table,
            self.table.policy,
            now=clock.now(),
            last_runs=last_state.last_runs,
            snapshots=snapshots,
        )
        if assessment.health is None:
            return self
        if self.state is not None:
            self.state.keep(self.context.resources, self.context.log, assessment)
        few = assessment.health.num_files <= _FEW_FILES
        return replace(self, assessed=assessment, snapshots=snapshots if few else None)

    def due(self, *, approve: Sequence[str] = (), plan_only: bool = False) -> FinishedRun:
        """Runs the operations that are due by the policy.

        `approve` names operations that need no further approval.
        """
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.policies.approval import Approvals, still_asked
        from delta_maintenance.policies.run import run

        def runner(last_state: memory.Memory) -> Callable[..., RunResult]:
            asked = still_asked(last_state.pending, (), now=clock.now())
            approvals = Approvals(
                operations=approve, by=self._person, asked=asked, plans_on_spark=not plan_only
            )
            return partial(run, approvals=approvals, plan_only=plan_only)

        return self._on_table(runner)

    def on_demand(
        self, operation: str, options: Mapping[str, Any], *, plan_only: bool = False
    ) -> FinishedRun:
        """Runs one operation, due or not; `options` override those of the policy."""
        from delta_maintenance.policies.on_demand import run_operation

        runner = partial(run_operation, operation=operation, options=options, plan_only=plan_only)
        return self._on_table(lambda _: runner)

    def run_approved(self, plans: Sequence[ApprovedPlan]) -> FinishedRun:
        """Runs approved plans, each only if it still has the approved effect."""
        from delta_maintenance.policies.on_demand import run_plans

        runner = partial(run_plans, plans=plans, approved_by=self._person)
        return self._on_table(lambda _: runner)

    def report(self, finished: FinishedRun, thresholds: HealthThresholds | None) -> None:
        """Records the table as it was just assessed: an observation, and with `thresholds` the
        health checks.
        """
        if finished.observation is not None:
            self.context.log_event(finished.observation)
            # The maintenance is of this version of the table, not of that before the step.
            step = self.context.get_step_execution_context()
            step.wipe_input_asset_version_info(self.table.key)
        latest = finished.result.newest_assessment
        if latest is None or thresholds is None:
            return
        judgements = judge(
            latest,
            self.table,
            thresholds,
            pending=finished.pending,
            approval=finished.approval,
            acknowledged=finished.acknowledged,
        )
        for judgement in judgements:
            evaluation = judgement.evaluation(self.table)
            # The type annotation of OpExecutionContext lacks check evaluations, which it accepts.
            self.context.log_event(evaluation)  # type: ignore[arg-type]

    def _environment(self, snapshots: NewestSnapshots) -> RunEnvironment:
        from delta_maintenance.policies.execute import RunEnvironment

        lease = InstanceLease(
            instance=self.context.instance, pool=self.table.pool, run_id=self.context.run.run_id
        )
        return RunEnvironment(
            submit=self._submit,
            raised=(dg.Failure, dg.RetryRequested),
            lease=lease,
            clones=self.clones,
            progress=LoggedProgress(_TableLog(self.context.log, self.table.label)),
            turns=self.turns,
            budget=self.budget,
            # A file that the choice found to be lost is asked for again.
            previous=None if self.assessed is None else self.assessed.health,
            snapshots=snapshots,
        )

    def _open(self) -> NewestSnapshots:
        from delta_maintenance.policies.assess import NewestSnapshots

        storage = self.resources.storage.resolve(self.context.resources)
        return NewestSnapshots(storage.open_table(self.table.policy))

    @property
    def ledger(self) -> StepLedger | None:
        """The ledger that the policy file of the table names; None without one."""
        policy = self.table.among
        if policy is None or policy.ledger is None:
            return None
        return StepLedger(
            context=self.context,
            rule=policy.ledger,
            storage=self.resources.storage,
            outbox=self.outbox,
        )

    @property
    def _person(self) -> str:
        """Who approves what this run does: the person who launched it, or else the run."""
        run = self.context.run
        return run.tags.get(_PERSON) or f"run {run.run_id}"

    def _on_table(self, runner: Callable[[memory.Memory], Callable[..., RunResult]]) -> FinishedRun:
        """Opens the table and runs what `runner` returns. A table that cannot be opened is a
        failed run.
        """
        from delta_maintenance.errors import failure_of
        from delta_maintenance.policies.run import failed_run

        last_state = memory.recall(self.context.instance, self.table)
        policy, observation = self.table.policy, None
        try:
            snapshots = self.snapshots or self._open()
        except Exception as error:
            failure = failure_of(error, where=policy.name)
            result = failed_run(policy, failure, now=clock.now(), last_runs=last_state.last_runs)
        else:
            result = runner(last_state)(
                snapshots.table,
                policy,
                last_runs=last_state.last_runs,
                environment=self._environment(snapshots),
            )
            observation = self._observe(result, snapshots)
        return replace(self._finish(result, last_state), observation=observation)

    def _observe(self, result: RunResult, snapshots: NewestSnapshots) -> dg.AssetObservation | None:
        """Returns the table as the run left it; None if the run has not read it, or not the last
        change of its data.
        """
        from delta_maintenance.operations.health.contents import read_contents

        health = result.newest_assessment.health if result.newest_assessment is not None else None
        if health is None:
            return None
        storage = self.resources.storage.resolve(self.context.resources)
        try:
            _, data_version = read_versions(self.context.instance, storage, self.table)
            contents = read_contents(snapshots.last_opened(), health)
        except DeltaMaintenanceError as error:
            self.context.log.debug(f"{self.table.label} is not observed: {error}")
            return None
        if data_version > health.version:
            return None
        return dg.AssetObservation(
            self.table.key,
            metadata={
                **describe_version(self.table, health.version),
                **metadata.of_contents(health, contents),
            },
            tags={DATA_VERSION: str(data_version)},
        )

    def _submit(
        self,
        policy_table: PolicyTable,
        due: AssessedOperation,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]:
        from delta_maintenance.submission.job_spec import JobSpec

        rules = policy_table.rules
        storage = self.resources.storage.resolve(self.context.resources)
        spec = JobSpec.of(
            due.operation,
            policy_table.uri,
            storage_options=storage.storage_options(rules.storage, uri=policy_table.uri),
            options=due.options.to_json() if due.options is not None else {},
            plan_only=plan_only,
            approved=None if approved is None else approved.to_json(),
        )
        spark = self.resources.spark.resolve(self.context.resources)
        try:
            return spark.run_job(spec, rule=rules.spark, context=self.context, drivers=self.drivers)
        except InvalidRequestError as error:
            raise error.locate(table=policy_table.uri) from error.__cause__

    def _finish(self, result: RunResult, last_state: memory.Memory) -> FinishedRun:
        from delta_maintenance.metrics.runs import report
        from delta_maintenance.policies.approval import waiting_texts
        from delta_maintenance.policies.entries import PastRun, gain_texts

        report(result)
        log, label = self.context.log, self.table.label
        for assessed in _operations(result.before):
            log.info(
                f"{label}: {assessed.operation} {assessed.status}: {replace_flags(assessed.reason)}"
            )
        latest, acknowledgement = result.newest_assessment, None
        if self.state is not None and latest is not None:
            acknowledgement = self.state.keep(self.context.resources, log, latest, result)
        history = self._record(result)
        pending = self._with_askers(_waiting(result, last_state.pending), last_state.pending)
        failed = log.error if acknowledgement is None else log.warning
        run = PastRun.of(result, None)
        for outcome in result.outcomes:
            reason = replace_flags(outcome.reason)
            tell = failed if outcome.exit_status else log.info
            tell(f"{label}: {outcome.operation} {outcome.status} on {outcome.engine}: {reason}")
        if result.exit_status:
            problem = replace_flags(acknowledgement or result.problem or "")
            failed(f"{label}: {result.status}; {problem}")
        else:
            gains = gain_texts([run], now=clock.now())
            log.info("; ".join([f"{label}: {result.status}", *gains, *waiting_texts(pending)]))
        approval = {}
        if self.approval_job is not None:
            approval = metadata.of_approval(self.approval_job, self.context.run, pending)
        return FinishedRun(
            table=self.table,
            result=result,
            pending=pending,
            approval=approval,
            history=history,
            acknowledged=acknowledgement if result.exit_status else None,
        )

    def _record(self, result: RunResult) -> metadata.Metadata:
        """Records the run in the ledger of the policy file, if it names one. Returns the last rows
        of the table there.
        """
        policy, ledger = self.table.among, self.ledger
        if policy is None or ledger is None:
            return {}
        ledger.deliver(lambda recorder, origin: recorder.record(result, origin))
        if not result.outcomes:
            # Nothing is new there since the last run.
            return {}
        try:
            rows = ledger.last_rows(result.name, prices=policy.prices)
        except Exception as error:
            # The recorder has told why, or will.
            self.context.log.debug(f"the ledger was not read: {error}")
            return {}
        return metadata.of_ledger(rows, policy.prices)

    def _with_askers(
        self, pending: Sequence[PendingPlan], before: Sequence[PendingPlan]
    ) -> tuple[PendingPlan, ...]:
        """Returns the plans, the new ones with the automation or the person that asked for them."""
        tags, known_ids = self.context.run.tags, {plan.id for plan in before}
        by = next((tags[tag] for tag in _ASKERS if tags.get(tag)), None)
        link = f"/runs/{self.context.run.run_id}"
        return tuple(
            plan if plan.id in known_ids else replace(plan, asked_by=by, link=link)
            for plan in pending
        )


def _waiting(result: RunResult, before: Sequence[PendingPlan]) -> tuple[PendingPlan, ...]:
    """Returns the waiting plans after a run, without those of operations that are no longer due."""
    from delta_maintenance.policies.approval import pending_of

    latest = result.newest_assessment
    if result.status == "planned" or latest is None or latest.status == "failed":
        return tuple(before)
    due = {operation.operation for operation in latest.operations if operation.status != "not-due"}
    return pending_of(result, [plan for plan in before if plan.operation in due])


def run_side_by_side(
    runs: Sequence[TableRun], work: Callable[[TableRun], FinishedRun]
) -> Generator[tuple[TableRun, FinishedRun], None, None]:
    """Does the work on the tables side by side, and yields each table when its work ends.

    Tables on which another run is working come last. Waits for those for at most `WAIT_SECONDS`,
    and then raises a `Failure` that may be retried. If the caller is interrupted, or closes
    this generator, no further table is begun, and the Spark drivers are ended.
    """
    from delta_maintenance.policies.lanes import start_jobs

    if len(runs) == 1:
        yield from _when_free(runs, work)
        return
    stopped = Event()

    def begin(run: TableRun) -> FinishedRun:
        if stopped.is_set():
            raise CancelledError
        return work(run)

    busy: list[TableRun] = []
    runs_by_job: dict[Future[FinishedRun], TableRun] = dict(
        zip(start_jobs(begin, runs), runs, strict=True)
    )
    try:
        for job in as_completed(runs_by_job):
            run = runs_by_job[job]
            try:
                finished = job.result()
            except BusyError as error:
                run.context.log.info(f"{run.table.label}: {error}; it is tried again at the end")
                busy.append(run)
            else:
                yield run, finished
    except BaseException:
        stopped.set()
        for run in runs:
            run.drivers.end()
        raise
    yield from _when_free(busy, work)


def _when_free(
    runs: Sequence[TableRun], work: Callable[[TableRun], FinishedRun]
) -> Iterator[tuple[TableRun, FinishedRun]]:
    """Does the work on one table after the other, as soon as no other run is working on it."""
    end = time.monotonic() + WAIT_SECONDS
    for run in runs:
        while True:
            try:
                finished = work(run)
            except BusyError as error:
                if time.monotonic() >= end:
                    raise dg.Failure(str(error.locate(table=run.table.uri))) from error
                time.sleep(PAUSE_SECONDS)
            else:
                yield run, finished
                break


def _operations(assessment: Assessment | None) -> tuple[AssessedOperation, ...]:
    return assessment.operations if assessment is not None else ()
