"""Running one operation of a policy: plan, check of limits and approval, apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from delta_maintenance import clock
from delta_maintenance.errors import BusyError, InvalidRequestError, RefusedError, failure_of
from delta_maintenance.operations.core.assessment import AssessedOperation
from delta_maintenance.operations.core.context import FileListing, RunContext, options_for
from delta_maintenance.operations.core.documents import Plan
from delta_maintenance.operations.core.facts import count_text, size_text
from delta_maintenance.operations.core.flags import has_field
from delta_maintenance.operations.core.operation import Amounts
from delta_maintenance.operations.core.outcome import Outcome
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import AnyOperation, find
from delta_maintenance.operations.core.rules import Limits
from delta_maintenance.operations.health import TableHealth
from delta_maintenance.policies.approval import ApprovedPlan
from delta_maintenance.policies.assess import NewestSnapshots
from delta_maintenance.policies.budget.selection import TableBudget
from delta_maintenance.policies.clones import PolicyClones
from delta_maintenance.policies.definition.policy import PolicyTable
from delta_maintenance.policies.definition.rules import with_promises
from delta_maintenance.policies.discovery import environment_options
from delta_maintenance.policies.lanes import Turns
from delta_maintenance.policies.measuring import SparkTime, freed_by, measure_block
from delta_maintenance.policies.models import OperationOutcome
from delta_maintenance.storage.core.base import DeletedBytes
from delta_maintenance.submission.job_report import split_task_seconds
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.table import Table

_CHANGING = ("done", "incomplete", "failed")
"""The outcomes whose result is a Result, not a Plan."""
_MANY = 1000
"""The number of files from which on a share is meaningful."""


class SubmitToSpark(Protocol):
    """Runs an operation as a Spark job; returns its Result as JSON, with `plan_only` its Plan.

    `approved` goes into the specification of the job, which plans again and raises `RefusedError`
    for another plan.
    """

    def __call__(
        self,
        table: PolicyTable,
        due: AssessedOperation,
        /,
        *,
        plan_only: bool = False,
        approved: ApprovedPlan | None = None,
    ) -> Mapping[str, Any]: ...


Lease = Callable[[], AbstractContextManager[object]]
"""Keeps other processes from working on the table. Raises `BusyError` if another one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """The parts of a run that depend on the calling process, not on the table."""

    submit: SubmitToSpark | None = None
    """Submits operations that are planned for Spark; without it they fail."""
    raised: tuple[type[Exception], ...] = ()
    """Errors of `submit` that end the run, because only the caller knows what they mean."""
    lease: Lease | None = None
    """The lease of the table, which a run takes before its first change."""
    clones: PolicyClones | None = None
    """Finds the clones of a table among the other tables of its policy."""
    save_files: Callable[[Plan, FileListing, str], object] | None = None
    """Stores the files of a plan that needs an approval, and the name of its operation."""
    progress: Progress | None = None
    budget: TableBudget | None = None
    """The budget of the policy, as far as it concerns the table."""
    turns: Turns | None = None
    """The turns of the tables that this process maintains side by side."""
    previous: TableHealth | None = None
    """The health in the last assessment of the table."""
    snapshots: NewestSnapshots | None = None
    """Those of earlier operations on the same table, if there are any."""
    # Evaluated late, because tests replace the clock.
    now: clock.Clock = field(default_factory=lambda: clock.now)
    new_id: clock.NewId = field(default_factory=lambda: clock.new_id)

    def turn(self, place: float) -> AbstractContextManager[object]:
        """Returns the turn of a table: its place in a budget, or the seconds it took to read."""
        return nullcontext() if self.turns is None else self.turns.turn(place)

    @contextmanager
    def claiming(self) -> Iterator[Callable[[], object]]:
        """Yields a function that takes the lease when first called. The lease ends with
        the block.
        """
        lease = self.lease
        with ExitStack() as held:
            yield cache(lambda: held.enter_context(lease()) if lease is not None else None)


def _no_lease() -> None:
    """For callers without a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Values that the operations of one run share."""

    table: Table
    snapshots: NewestSnapshots
    policy_table: PolicyTable
    environment: RunEnvironment
    plans_on_spark: bool = False
    """Whether to submit a Spark job for a plan that only a job can make."""
    claim: Callable[[], object] = _no_lease
    """Takes the lease of the table, before the first change of a run; later calls do nothing."""
    jobs: SparkTime = field(default_factory=SparkTime)
    """The time of the Spark jobs."""


Status = Literal["done", "nothing-to-do", "planned", "incomplete", "failed"]
STATUSES: Mapping[Outcome, Status] = {
    Outcome.DONE: "done",
    Outcome.NOTHING_TO_DO: "nothing-to-do",
    Outcome.PLANNED: "planned",
    # Not a failure, because the rest only has to wait.
    Outcome.WAITING: "incomplete",
    Outcome.INCOMPLETE: "incomplete",
    Outcome.CONFLICT: "failed",
    Outcome.REFUSED: "failed",
    Outcome.FAILED: "failed",
    Outcome.CORRUPT: "failed",
}


def execute(
    context: Context,
    due: AssessedOperation,
    *,
    commits_made: int,
    plan_only: bool,
    approved: ApprovedPlan | None = None,
) -> OperationOutcome:
    """Plans the operation, and applies the plan unless only the plan is requested.

    A plan that exceeds the limits of the policy ends as `stopped`. With `approved`, a plan with
    another effect raises `RefusedError`. Raises the errors of the operation.
    """
    request = _Request(context, find(due.operation), due, approved)
    return request.plan_only_outcome() if plan_only else request.apply_within_limits(commits_made)


def plan_for_approval(
    context: Context, due: AssessedOperation, *, commits_made: int
) -> OperationOutcome:
    """Plans an operation that needs an approval, so that its plan can be shown.

    Ends as `needs-approval` with the plan as its result. A plan that exceeds the limits of the
    policy ends as `stopped`. A plan that changes nothing is applied at once, without an approval.
    """
    return _Request(context, find(due.operation), due, None).for_approval(commits_made)


def measure_outcome(
    context: Context,
    work: Callable[[], OperationOutcome],
    blank: Callable[[], OperationOutcome],
    *,
    bytes_of_deleted: Callable[[], DeletedBytes],
) -> OperationOutcome:
    """Returns the outcome of `work` with its cost, its duration, and what becomes of the files that
    it deleted; an error fails the outcome `blank`.

    Raises `BusyError` and the errors that the environment names again, which end the run.
    """
    now = context.environment.now
    with measure_block(context.table.store, context.jobs) as measurement:
        try:
            outcome = work()
        except Exception as error:
            if isinstance(error, (BusyError, *context.environment.raised)):
                raise
            outcome = blank()
            failure = failure_of(error, where=f"{context.policy_table.name}, {outcome.operation}")
            outcome = replace(
                outcome,
                status="failed",
                reason=str(failure.locate(table=context.table.uri)),
                exit_status=failure.exit_status,
                retryable=failure.retryable,
            )
        if outcome.status in _CHANGING:
            freed = freed_by(outcome.operation, outcome.result, bytes_of_deleted, now=now())
            outcome = replace(outcome, freed=freed)
    seconds = (now() - blank().started_at).total_seconds()
    return replace(outcome, seconds=seconds, cost=measurement.cost)


class _Request:
    """One requested operation."""

    def __init__(
        self,
        context: Context,
        record: AnyOperation,
        due: AssessedOperation,
        approved: ApprovedPlan | None,
    ) -> None:
        self.context = context
        self.record = record
        self.entries = [context.policy_table]  # and those under other names of the table
        self.asked: Record = due.options if due.options is not None else record.options()
        self.due = due
        self.approved = approved
        # An approval binds them.
        self._keep_promises()
        self._take_clones()
        self.options: Record = self._narrow_options()
        self.limits = context.policy_table.rules.limits
        self.blank = OperationOutcome(
            operation=due.operation,
            status="planned",
            reason=due.reason,
            started_at=context.environment.now(),
        )

    def _keep_promises(self) -> None:
        """Adds to the options what the policy holds, whatever options a caller gave."""
        context, clones, snapshot = self.context, self.context.environment.clones, None
        if not has_field(self.asked, "holders"):
            return
        if self.record.effects.deletes or has_field(self.asked, "clones"):
            snapshot = context.snapshots.last_opened()
            if clones is not None:
                self.entries += clones.same_tables(snapshot, context.policy_table)
        rules = [entry.rules for entry in self.entries]
        self.asked = with_promises(self.asked, self.record, rules, snapshot)

    def _take_clones(self, *, anew: bool = False) -> bool:
        """Adds the clones among the tables of the policy; returns whether there are new ones."""
        search, options = self.context.environment.clones, cast("Any", self.asked)
        if search is None or not has_field(options, "clones"):
            return False
        clones = search.of(self.context.table, self.context.policy_table, anew=anew)
        self.asked = replace(options, clones=tuple(dict.fromkeys((*options.clones, *clones))))
        self.options = self._narrow_options()
        return bool({*clones} - {*options.clones})

    def _narrow_options(self) -> Record:
        approved = self.approved
        return self.asked if approved is None else approved.narrow_options(self.record, self.asked)

    def plan_only_outcome(self) -> OperationOutcome:
        """Returns the plan, with the limits that it would exceed."""
        prepared = None if self.due.engine == "spark" else self._prepare_with_clones(plan_only=True)
        if prepared is None:
            outcome = replace(self.blank, engine="spark")
            if not self.context.plans_on_spark:
                return replace(outcome, reason=f"{self.due.reason}; the job plans it")
            return self._with_plan(outcome, self._plan_by_job())
        self._require_approved(prepared.plan)
        conclusion = self.record.conclusion_of_plan(prepared.plan)
        corrupt = str(conclusion) if conclusion.outcome is Outcome.CORRUPT else None
        beyond = corrupt or self._beyond(prepared.plan, commits_made=0)
        reason = self.due.reason if beyond is None else f"{self.due.reason}, but {beyond}"
        return self._with_plan(replace(self.blank, reason=reason), prepared.plan)

    def for_approval(self, commits_made: int) -> OperationOutcome:
        """Returns the plan, unless it exceeds a limit or changes nothing."""
        waiting = replace(self.blank, status="needs-approval")
        prepared = None if self.due.engine == "spark" else self._prepare_with_clones(plan_only=True)
        if prepared is None:
            waiting = replace(waiting, engine="spark")
            if not self.context.plans_on_spark:
                return waiting
            plan = self._plan_by_job()
        else:
            plan = prepared.plan
        if plan.is_noop:
            if prepared is not None:
                result = prepared.apply()
            elif self.record.needs_job(plan):
                # The job plans again, and nobody has approved any other plan.
                self.approved = ApprovedPlan.of(self._with_plan(waiting, plan))
                result = self._by_job()
            else:
                result = self._apply_noop(plan)
            return self._outcome_of_result(replace(self.blank, engine=waiting.engine), result)
        beyond = self._beyond(plan, commits_made=commits_made)
        if beyond is not None:
            return self._stopped_outcome(replace(self.blank, engine=waiting.engine), beyond, plan)
        save_files = self.context.environment.save_files
        if save_files is not None and prepared is not None and prepared.listing is not None:
            save_files(plan, prepared.listing, self.record.name)
        return self._with_plan(waiting, plan)

    def outcome_of_job(self) -> OperationOutcome:
        """Returns the Result of a job, after every check of its plan."""
        return self._outcome_of_result(replace(self.blank, engine="spark"), self._by_job())

    def apply_within_limits(self, commits_made: int) -> OperationOutcome:
        """Returns the Result, unless the plan exceeds a limit."""
        prepared = None if self.due.engine == "spark" else self._prepare_with_clones()
        if prepared is None:
            return self._apply_by_job()
        plan = prepared.plan
        self._require_approved(plan)
        beyond = self._beyond(plan, commits_made=commits_made)
        if beyond is not None:
            return self._stopped_outcome(self.blank, beyond, plan)
        if self.record.needs_job(plan):
            return self.outcome_of_job()
        if not plan.is_noop:
            self.context.claim()
        return self._outcome_of_result(self.blank, prepared.apply())

    def _prepare_with_clones(self, *, plan_only: bool = False) -> Any:
        prepared = self._prepare(plan_only=plan_only)
        deletes = prepared is not None and not plan_only and not prepared.plan.is_noop
        again = deletes and self._take_clones(anew=True)
        return self._prepare(plan_only=plan_only) if again else prepared

    def _prepare(self, *, plan_only: bool) -> Any:
        environment = self.context.environment
        context = RunContext(
            started=self.blank.started_at,
            now=environment.now,
            new_id=environment.new_id,
            progress=environment.progress,
            plan_only=plan_only,
            newest=self.context.snapshots.to_plan,
            storage_options=self._options_at,
        )
        return self.record.prepare(self.context.table, self.options, context)

    def _options_at(self, address: str) -> Mapping[str, str] | None:
        """Returns the storage options for an address other than the table's."""
        clones, table = self.context.environment.clones, self.context.table
        readers = (reader for entry in self.entries for reader in entry.rules.readers)
        reader_storage = next(
            (reader.storage for reader in readers if reader.address == address), None
        )
        if reader_storage is not None:
            return (
                clones.options_at(reader_storage, address)
                if clones is not None
                else environment_options(reader_storage)
            )
        clone_options = clones.storage_options(address) if clones is not None else None
        if clone_options is not None:
            return clone_options
        table_options = table.located.storage_options if table.located is not None else {}
        return options_for(address, table_options, kind=table.store.address.kind)

    def _apply_by_job(self) -> OperationOutcome:
        """Like `apply_within_limits`, on Spark; the job makes its own plan because this process has
        too little memory.

        If a plan must be compared with limits or an approval, an earlier job makes it.
        """
        outcome = replace(self.blank, engine="spark")
        self._take_clones(anew=True)
        limited = self.record.effects.deletes and self.limits.limits_deletions_further
        if self.approved is not None or limited:
            plan = self._plan_by_job()
            self._require_approved(plan)
            beyond = _beyond_deletions(self.limits, self.record.planned_amounts(plan))
            if beyond is not None:
                return self._stopped_outcome(outcome, beyond, plan)
            if plan.is_noop:
                return self._outcome_of_result(outcome, self._apply_noop(plan))
            if self.approved is None:
                # The job plans again, and no other plan was compared with the limits.
                self.approved = ApprovedPlan.of(self._with_plan(outcome, plan))
        return self._outcome_of_result(outcome, self._by_job())

    def _apply_noop(self, plan: Any) -> Any:
        """Applies a job's plan that changes nothing: a second job would only plan again."""
        return import_module(self.record.code).apply(self.context.table, plan)

    def _plan_by_job(self) -> Any:
        plan = self.record.plan.from_json(self._submit(plan_only=True))
        # The table may have been replaced while the job ran.
        self.context.snapshots.newest()
        return plan

    def _by_job(self) -> Any:
        self.context.claim()
        return self.record.result.from_json(self._submit())

    def _submit(self, *, plan_only: bool = False) -> dict[str, Any]:
        table, approved = self.context.policy_table, self.approved
        # With an approval, the job narrows the options itself, because it compares the requested
        # ones.
        options = self.options if approved is None else self.asked
        submit = self.context.environment.submit
        has_engine = has_field(options, "engine")
        if submit is None:
            or_else = (
                "set engine: {prefer: local} in the policy"
                if has_engine and self.record.policy is not None
                else "with its command on the command line"
            )
            raise InvalidRequestError(
                f"{self.record.name} must run on Spark, but this process cannot submit Spark jobs",
                remedy=f"run it from an orchestrator, or {or_else}",
            )
        if has_engine:
            options = replace(options, engine="spark")  # type: ignore[call-arg]  # has_engine
        due = replace(self.due, engine="spark", options=options)
        keywords: dict[str, Any] = {"plan_only": True} if plan_only else {}
        if approved is not None:
            keywords["approved"] = approved
        document, seconds = split_task_seconds(submit(table, due, **keywords))
        self.context.jobs.add(seconds)
        return document

    def _with_plan(self, outcome: OperationOutcome, plan: Any) -> OperationOutcome:
        """Returns an outcome with a plan that can be approved."""
        return replace(
            outcome,
            result=plan.to_json(),
            options=self.asked.to_json(),
            table_id=self.context.snapshots.table_id(),
        )

    def _require_approved(self, plan: Any) -> None:
        if self.approved is not None:
            self.approved.require(plan, self.asked, table_id=self.context.snapshots.table_id())

    def _beyond(self, plan: Any, *, commits_made: int) -> str | None:
        """Returns the first limit that the plan would exceed, as one clause."""
        if plan.is_noop:
            return None
        amounts, max_commits = self.record.planned_amounts(plan), self.limits.max_commits
        beyond = _beyond_deletions(self.limits, amounts)
        if beyond is not None:
            return beyond
        commits = commits_made + amounts.commits
        if max_commits is not None and amounts.commits and commits > max_commits:
            allowed = f"{max_commits:,} are allowed"
            return f"the run would make {count_text(commits, 'commit')}, and {allowed}"
        return None

    def _stopped_outcome(
        self, outcome: OperationOutcome, beyond: str, plan: Any
    ) -> OperationOutcome:
        return replace(
            outcome,
            status="stopped",
            reason=f"{beyond}; check the plan, then raise the limit or run the operation manually",
            result=plan.to_json(),
            exit_status=RefusedError.exit_status,
        )

    def _outcome_of_result(self, outcome: OperationOutcome, result: Any) -> OperationOutcome:
        """Returns the outcome of a Result."""
        conclusion = self.record.conclusion(result)
        if self.record.effects.adds_files:
            self.context.snapshots.reopen()
        return replace(
            outcome,
            status=STATUSES[conclusion.outcome],
            reason=str(conclusion) or outcome.reason,
            result=result.to_json(),
            commits=self.record.done_amounts(result).commits,
            exit_status=conclusion.outcome.exit_status,
            retryable=conclusion.outcome.retryable,
        )


def _beyond_deletions(limits: Limits, amounts: Amounts) -> str | None:
    """Returns the first limit that the deletions of an operation exceed, as one clause."""
    files, size, looked_at = amounts.deleted_files, amounts.deleted_bytes, amounts.looked_at
    most_files, most_bytes = limits.max_deleted_files, limits.max_deleted_bytes
    if most_files is not None and files > most_files:
        return f"{count_text(files, 'file')} would be deleted, and {most_files:,} are allowed"
    if most_bytes is not None and size > most_bytes:
        return f"{size_text(size)} would be deleted, and {size_text(most_bytes)} are allowed"
    if limits.max_deleted_share is not None and looked_at and files > _MANY:
        share = files / looked_at
        if share > limits.max_deleted_share:
            return (
                f"{share:.0%} of {looked_at} data files would be deleted, and "
                f"{limits.max_deleted_share:.0%} are allowed"
            )
    return None
