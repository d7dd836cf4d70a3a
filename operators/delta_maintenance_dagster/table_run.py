"""One run on one table: what is due, one operation on demand, or approved plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from delta_maintenance import clock
from delta_maintenance.errors import BusyError, DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core import replace_flags
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance_dagster import memory, metadata
from delta_maintenance_dagster.health_checks import HealthThresholds, judge
from delta_maintenance_dagster.leases import InstanceLease
from delta_maintenance_dagster.step_resources import Context, SharedState, StepResources
from delta_maintenance_dagster.tables import DeltaTable

if TYPE_CHECKING:
    from delta_maintenance.policies.approval import ApprovedPlan, PendingPlan
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.definition.ledger import LedgerRule, Prices
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.execute import RunEnvironment
    from delta_maintenance.policies.models import AssessedOperation, Assessment, RunResult

WAIT_SECONDS = 3600.0
"""The maximum time for which a run waits for another run on the same table."""
PAUSE_SECONDS = 10.0
"""The interval in seconds for checking whether the other run has ended."""
_AT_ONCE = 1.0
"""The seconds in which a store usually answers."""
_PROBED = "_delta_log/_last_checkpoint"
_PERSON = "user"
"""The tag of a run with the person who launched it, which only Dagster+ sets by itself."""
_ASKERS = (_PERSON, "dagster/schedule_name", "dagster/sensor_name")
"""The tags of a run that say who started it."""
_SHOWN_ROWS = 10
_LOOKS_BACK = timedelta(days=31)


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
    state: SharedState | None = None
    """Where failures are acknowledged; None for runs for which a person waits."""
    outbox: SharedState | None = None
    """Where rows are kept until the ledger of the policy can be written."""

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

    def probe(self) -> None:
        """Sends a request to the store of the table; its answer does not matter."""
        storage = self.resources.storage.resolve(self.context.resources)
        with closing(storage.open_table(self.table.policy).store) as store:
            store.stat(_PROBED)

    def evaluate_checks(self, finished: FinishedRun, thresholds: HealthThresholds) -> None:
        """Records the health checks: the table has just been assessed."""
        latest = finished.result.newest_assessment
        if latest is None:
            return
        judgements = judge(
            latest,
            self.table,
            thresholds,
            pending=finished.pending,
            acknowledged=finished.acknowledged,
        )
        for judgement in judgements:
            evaluation = judgement.evaluation(self.table)
            # The type annotation of OpExecutionContext lacks check evaluations, which it accepts.
            self.context.log_event(evaluation)  # type: ignore[arg-type]

    @property
    def _environment(self) -> RunEnvironment:
        from delta_maintenance.policies.execute import RunEnvironment

        lease = InstanceLease(
            instance=self.context.instance, pool=self.table.pool, run_id=self.context.run.run_id
        )
        return RunEnvironment(
            submit=self._submit,
            raised=(dg.Failure, dg.RetryRequested),
            lease=lease,
            clones=self.clones,
            progress=LoggedProgress(self.context.log),
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
        policy = self.table.policy
        try:
            table = self.resources.storage.resolve(self.context.resources).open_table(policy)
        except Exception as error:
            failure = failure_of(error, where=policy.name)
            result = failed_run(policy, failure, now=clock.now(), last_runs=last_state.last_runs)
        else:
            result = runner(last_state)(
                table, policy, last_runs=last_state.last_runs, environment=self._environment
            )
        return self._finish(result, last_state)

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
            return spark.run_job(spec, rule=rules.spark, context=self.context)
        except InvalidRequestError as error:
            raise error.locate(table=policy_table.uri) from error.__cause__

    def _finish(self, result: RunResult, last_state: memory.Memory) -> FinishedRun:
        from delta_maintenance.metrics.runs import report
        from delta_maintenance.policies.approval import waiting_texts
        from delta_maintenance.policies.entries import PastRun, gain_texts

        report(result)
        log = self.context.log
        for assessed in _operations(result.before):
            log.info(f"{assessed.operation}: {assessed.status}, {replace_flags(assessed.reason)}")
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
            tell(f"{outcome.operation} on {outcome.engine}: {outcome.status}; {reason}")
        if result.exit_status:
            problem = replace_flags(acknowledgement or result.problem or "")
            failed(f"{self.table.label}: {result.status}; {problem}")
        else:
            told_of = [f"{self.table.label}: {result.status}", *gain_texts([run], now=clock.now())]
            log.info("; ".join([*told_of, *waiting_texts(pending)]))
        approval = {}
        if pending and self.approval_job is not None:
            approval = metadata.of_approval(self.approval_job, self.context.run.run_id)
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
        # Loads pyarrow, which loading definitions must not require.
        from delta_maintenance.ledger.recording import Recorder
        from delta_maintenance.ledger.rows import Origin

        policy = self.table.among
        if policy is None or policy.ledger is None:
            return {}
        rule, provided = policy.ledger, self.context.resources
        storage = self.resources.storage.of(rule.storage.connection)
        shared = nullcontext() if self.outbox is None else self.outbox.opening(provided)
        link = f"/runs/{self.context.run.run_id}"
        origin = Origin(done_by="dagster", run_id=clock.new_id(), link=link)

        def options() -> Mapping[str, str]:
            return storage.resolve(provided).storage_options(rule.storage, uri=rule.uri)

        try:
            with shared as state:
                store = state.store if state is not None else None
                recorder = Recorder.at(rule.uri, options, state=store)
                for warning in recorder.record(result, origin):
                    self.context.log.warning(warning)
        except DeltaMaintenanceError as error:
            self.context.log.warning(f"the ledger was not written: {error}")
        if not result.outcomes:
            # Nothing is new there since the last run.
            return {}
        try:
            rows = _last_rows(rule, result.name, storage_options=options, prices=policy.prices)
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


def _last_rows(
    rule: LedgerRule,
    table: str,
    *,
    storage_options: Callable[[], Mapping[str, str]],
    prices: Prices | None,
) -> Sequence[Mapping[str, Any]]:
    """Returns the newest rows of a table, the newest first; none if the store of the ledger failed
    a short while ago. Raises the errors of the ledger.
    """
    from delta_maintenance.ledger.recording import is_unreachable
    from delta_maintenance.ledger.summary import newest
    from delta_maintenance.ledger.table import LedgerTable
    from delta_maintenance.storage import open_store

    if is_unreachable(rule.uri, None):
        return ()
    ledger = LedgerTable(open_store(rule.uri, storage_options()))
    since = clock.now() - _LOOKS_BACK
    rows: list[dict[str, Any]] = newest(
        ledger, since=since, most=_SHOWN_ROWS, table=table, prices=prices
    ).to_pylist()
    return rows


def _waiting(result: RunResult, before: Sequence[PendingPlan]) -> tuple[PendingPlan, ...]:
    """Returns the waiting plans after a run, without those of operations that are no longer due."""
    from delta_maintenance.policies.approval import pending_of

    latest = result.newest_assessment
    if result.status == "planned" or latest is None or latest.status == "failed":
        return tuple(before)
    due = {operation.operation for operation in latest.operations if operation.status != "not-due"}
    return pending_of(result, [plan for plan in before if plan.operation in due])


def all_of(
    runs: Sequence[TableRun], work: Callable[[TableRun], FinishedRun]
) -> Iterator[tuple[TableRun, FinishedRun]]:
    """Does the work on each table, in order. Tables whose store does not answer at once come after
    the others, and tables on which another run is working last.

    Waits for those for at most `WAIT_SECONDS`, and then raises a `Failure` that may be retried.
    """
    late: list[TableRun] = []
    for run in _answering_first(runs):
        try:
            finished = work(run)
        except BusyError as error:
            run.context.log.info(f"{run.table.label}: {error}; it is tried again at the end")
            late.append(run)
        else:
            yield run, finished
    end = time.monotonic() + WAIT_SECONDS
    for run in late:
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


def _answering_first(runs: Sequence[TableRun]) -> Iterator[TableRun]:
    """Yields the tables whose store answers at once, in order, and then the others as theirs do."""
    from delta_maintenance.policies.lanes import start_jobs, wait_for

    if len(runs) < 2:
        yield from runs
        return
    slow: dict[Future[None], TableRun] = {}
    for job, run in zip(start_jobs(TableRun.probe, runs), runs, strict=True):
        if wait_for(job, patience=_AT_ONCE):
            yield run
        else:
            slow[job] = run
    yield from (slow[job] for job in as_completed(slow))


def _operations(assessment: Assessment | None) -> tuple[AssessedOperation, ...]:
    return assessment.operations if assessment is not None else ()
