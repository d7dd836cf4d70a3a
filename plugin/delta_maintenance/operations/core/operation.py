"""The record of an operation, which command line, Spark job, policies and orchestrators use.

A record is cheap to import: no pyarrow, pydantic or PySpark. Expensive parts are named by
references (`"package.module:attribute"`), which are loaded on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial, reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from delta_maintenance.address import Access
from delta_maintenance.clock import epoch_millis
from delta_maintenance.errors import RefusedError, locating
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import Facts, facts_of
from delta_maintenance.operations.core.flags import flag_fields, has_field, required_fields
from delta_maintenance.operations.core.outcome import Conclusion, Outcome
from delta_maintenance.operations.core.record import Record
from delta_maintenance.protocol.features.registry import find_feature
from delta_maintenance.table.commit.other_writers import (
    DeclaredWriters,
    guarded_window,
    require_declared_writers,
)

if TYPE_CHECKING:
    from delta_maintenance.operations.core.assessment import LastRun
    from delta_maintenance.operations.core.documents import Plan, Result
    from delta_maintenance.table.read.table import Table


O = TypeVar("O", bound=Record)  # noqa: E741  O, P, R: Options, Plan, Result
P = TypeVar("P", bound="Plan")
R = TypeVar("R", bound="Result")


Purpose = Literal["look", "repair", "files", "log", "table", "policy", "spark"]
"""The groups of verbs in the help of the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The kinds of changes that an operation can make to a table."""

    commits: bool = False
    """Whether it adds versions."""
    adds_files: bool = False
    """Whether it adds files for readers, without a version: checkpoints, compactions."""
    deletes: bool = False
    """Whether it deletes rows, or files of the log or data files."""
    changes_table: bool = False
    """Whether it permanently changes the table: its protocol, its properties, its row IDs. Such an
    operation runs once; a table that already has the change needs no approval.
    """

    @property
    def only_reads(self) -> bool:
        """Whether the table is unchanged afterwards, byte for byte."""
        return self == Effects()


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amounts of a Plan or a Result that policies can limit."""

    commits: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    looked_at: int | None = None
    """The total of which the deleted files are a share; None if a share has no meaning."""
    oldest: datetime | None = None
    """When the first of the deleted files was modified, if known."""


def _is_for_spark(plan: Any) -> bool:
    return plan.engine == "spark" and not plan.is_noop


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPart:
    """How an operation works on Spark."""

    engine: str
    """Reference to a function that returns the engine of a `spark.session.JobSession`."""
    plans_by_job: bool = False
    """Whether only a job can make a plan for Spark, because planning is most of the work."""
    skips_plan: Callable[[Any], bool] = lambda _: False
    """Returns whether, with these Options, a job is submitted without a plan of this process."""
    pins_version: bool = False
    """Whether the job works on the version of the plan instead of the newest one."""
    require: str | None = None
    """Reference to a function of a snapshot and the Options that raises if a job would certainly be
    refused. Called if no plan is made before a job is submitted; reads no data file.
    """
    needs_job: Callable[[Any], bool] = _is_for_spark
    """Returns whether a job must apply a plan of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPart:
    """The rule for an operation in a policy."""

    key: str
    """The key in the policy document. Several operations may share one."""
    rule: str
    """Reference to the model of the key's value, a `core.rules.Rule`; `"bool"` for a switch."""
    description: str
    """The description of the key, for the JSON schema."""
    due: str
    """Reference to the function that takes a `core.evaluation.EvaluationContext` and returns
    whether, and why, the operation is due; None if the policy does not request it.
    """
    before: str | None = None
    """Reference to a function that returns, for the value of the key, the operations that must run
    after this one, whatever the usual order."""


def _never(_: Any) -> bool:
    return False


# Compared by identity and hashable, because a name has only one record.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationRecord(Generic[O, P, R]):
    """One operation: its parts, its effects on a table, and its descriptions."""

    name: str
    """The verb of the command line, such as `compact-log`."""
    title: str
    """The title in forms, such as `Compact the log`."""
    purpose: Purpose = "table"
    summary: str
    """One clause of at most 53 characters for lists of verbs."""
    description: str
    """What it does, in a few sentences."""
    prints: str = "Prints the result; --dry-run prints the plan and its reasons."
    """What the command line prints, for the help of the verb."""
    options: type[O]
    plan: type[P]
    result: type[R]
    code: str
    """The module with `plan` and `apply`, and optionally `prepare`."""
    outcomes: Mapping[str, Outcome]
    """The outcome for each `status` of a Result."""
    effects: Effects = field(default_factory=Effects)
    only_reads: Callable[[O], bool] = lambda _: False
    """Returns whether the operation has none of its effects with these Options."""
    commits_on_s3: Callable[[O], bool] = lambda _: True
    """Returns whether an operation that can add versions does so on S3 with these Options."""
    runs_on_corrupt: bool = False
    """Whether a policy may run it on a table that was found corrupt, because it examines, repairs
    or protects the table."""
    requires: tuple[str, ...] = ()
    """The accesses that the table's protocol must allow: values of
    `protocol.features.registry.Operation`."""
    subjects: tuple[str, ...] = ()
    """Fields of the Options that name the subject of the operation; they are arguments of
    operators."""
    spark: SparkPart | None = None
    """None if it only works in this process."""
    only_spark: Callable[[P], str | None] = lambda _: None
    """Returns why this process could not do the work of a plan for Spark, as a clause."""
    policy: PolicyPart | None = None
    """None if the operation only runs on demand."""
    takes: Literal["snapshot", "table"] = "snapshot"
    """The first argument of `plan`; `table` for operations on tables that may not open."""
    example_table: str = "s3://lake/sales/orders"
    """The table of the example that `--help` shows."""
    takes_version: bool = False
    """Whether it accepts another version than the latest."""
    reuses_snapshot: bool = False
    """Whether `apply` takes the plan's `snapshot`, which saves opening the table again."""
    report: str | None = None
    """The contents of its report, such as `every file to delete`; None if there is no report."""
    decisive: tuple[str, ...] = ()
    """Fields of the Plan that must equal those of the approved plan, in addition to the options."""
    bounds: Mapping[str, str] = field(default_factory=dict)
    """Options that limit the work, each with the field of the Plan that contains the amount: a run
    of an approved plan does at most the approved amount.
    """
    asks_for_approval: Callable[[P], bool] = _never
    """Returns whether a plan should be approved first."""
    planned_amounts: Callable[[P], Amounts] = lambda _: Amounts()
    done_amounts: Callable[[R], Amounts] = lambda _: Amounts()
    plan_facts: Callable[[P], Facts] = facts_of
    """Returns the facts of a Plan that not all Plans have, for the command line, logs, approvals
    and pages."""
    result_facts: Callable[[R], Facts] = facts_of
    """Returns the facts of a Result that not all Results have."""
    totals: Callable[[Any], Mapping[str, Any]] = lambda _: {}
    """Returns numbers of a Plan or a Result that orchestrators keep in addition to its fields."""
    conclusion_of_plan: Callable[[P], Conclusion] = lambda _: Conclusion(outcome=Outcome.PLANNED)
    """For an operation whose plan can report a damaged table."""
    conclusion_of_result: Callable[[R, Outcome], Conclusion] = lambda _, outcome: Conclusion(
        outcome=outcome
    )
    """Adds problem and remedy to the outcome of a Result, or corrects it."""
    wrote: Callable[[R], bool] | None = None
    """Returns whether the table was written to. By default, the outcome decides."""

    @property
    def keeps_for_holders(self) -> bool:
        """Whether the operation keeps what kept versions, readers and clones need."""
        return has_field(self.options, "holders")

    @property
    def engines(self) -> tuple[str, ...]:
        """`local`, `spark` or both."""
        return ("local", "spark") if self.spark is not None else ("local",)

    @property
    def must_set(self) -> tuple[str, ...]:
        """Fields of the Options that have no default."""
        return required_fields(self.options)

    @property
    def example(self) -> Mapping[str, Any]:
        """Example values for the required fields, for messages and forms."""
        return {
            field.name: field.flag.example
            for field in flag_fields(self.options)
            if field.is_required
        }

    @property
    def may_need_approval(self) -> bool:
        """Whether its plan should be seen first: it may delete, repair or change a table."""
        asks = self.asks_for_approval is not _never
        return asks or self.effects.deletes or self.effects.changes_table

    @property
    def chooses_engine(self) -> bool:
        """Whether its Options choose the engine."""
        return has_field(self.options, "engine")

    @property
    def commits_by_name(self) -> bool:
        """Whether its commits contain the ID of the task, by which a retry finds them."""
        return has_field(self.options, "operation_id")

    def may_commit_on_s3(self, options: O) -> bool:
        """Returns whether it may add versions to a table on S3 with these Options."""
        commits = self.effects.commits and self.commits_on_s3(options)
        return commits and not self.only_reads(options)

    @property
    def asks_for_writers(self) -> bool:
        """Whether it has an option for the other writers of the table."""
        return has_field(self.options, "other_writers")

    def conclusion(self, result: R) -> Conclusion:
        """Returns the conclusion of a Result."""
        return self.conclusion_of_result(result, self.outcome_of(result.status))

    def outcome_of(self, status: str) -> Outcome:
        """Returns the outcome of a Result's status. An unknown status is a failure."""
        return self.outcomes.get(status, Outcome.FAILED)

    def heading(self, document: Any) -> str:
        """Returns the title of a Plan or a Result."""
        return f"{self.name}, dry run" if type(document) is self.plan else self.name

    def facts(self, document: Any) -> Facts:
        """Returns the facts of a Plan or a Result, with those that all of them have."""
        planned = type(document) is self.plan
        own = (self.plan_facts if planned else self.result_facts)(document)
        first = {"table": document.table, "version": document.version}
        if not planned and "status" not in own:
            first["status"] = document.status.replace("-", " ")
        return {**first, **own, "notes": document.notes}

    def wrote_to_table(self, result: R) -> bool:
        """Returns whether the table was written to, by this attempt or an earlier one."""
        if self.wrote is not None:
            return self.wrote(result)
        untouched = (Outcome.NOTHING_TO_DO, Outcome.CONFLICT, Outcome.REFUSED)
        return self.conclusion(result).outcome not in untouched

    @property
    def supports_managed(self) -> bool:
        """Whether the protocol of a catalog-managed table allows the operation."""
        feature = find_feature("catalogManaged")
        allowed = {access.value for access in feature.operations} if feature is not None else set()
        return bool(self.requires) and allowed.issuperset(self.requires)

    def access(self, options: O, *, plan_only: bool) -> Access:
        """Returns the access to the table that a run needs."""
        reads = plan_only or self.effects.only_reads or self.only_reads(options)
        return Access.READ if reads else Access.READ_WRITE

    def prepare(self, table: Table, options: O, context: RunContext) -> Prepared[P, R] | None:
        """Plans, and keeps the gathered information for `apply`. Changes nothing.

        Returns None if only a Spark job can make the plan. Raises the errors of the operation's
        `plan`, and those of `Table.expect` if the catalog of the table denies the access.
        """
        access = self.access(options, plan_only=context.plan_only)
        table.expect(access, managed=self.supports_managed)
        code = import_module(self.code)
        writes = self.access(options, plan_only=False) is Access.READ_WRITE
        context = replace(context, writes=writes)
        own_prepare = getattr(code, "prepare", None)
        if own_prepare is not None:
            prepared: Prepared[P, R] | None = own_prepare(table, options, context)
            return prepared and self._guard_apply(prepared, table, options, context)
        subject = table if self.takes == "table" else context.snapshot_of(table)
        plan: P = code.plan(subject, options, context)
        if getattr(plan, "engine", "local") != "spark":
            context = context.without_engine()
        reused = {"snapshot": subject} if self.reuses_snapshot else {}
        apply = partial(code.apply, table, plan, context, **reused)
        return self._guard_apply(Prepared(plan=plan, apply=apply), table, options, context)

    def _guard_apply(
        self, prepared: Prepared[P, R], table: Table, options: O, context: RunContext
    ) -> Prepared[P, R]:
        """Returns it with an `apply` that is refused within the quiet window, if there is one, and
        that verifies guarded commits afterwards, whatever its outcome. A plan that is not applied
        gets a note if its commits would be refused now.
        """
        plan, declared = prepared.plan, cast("DeclaredWriters", options)
        if plan.is_noop or not self.asks_for_writers or not self.may_commit_on_s3(options):
            return prepared

        def require_quiet_window() -> timedelta | None:
            from delta_maintenance.table.commit.guarded import require_quiet

            quiet = guarded_window(table.uri, declared)
            if quiet is not None:
                now_ms = epoch_millis(context.now())
                require_quiet(table.store, plan.version, quiet=quiet, now_ms=now_ms)
            return quiet

        if context.plan_only:
            try:
                require_declared_writers(table.uri, declared)
                require_quiet_window()
            except RefusedError as error:
                note = f"the run would be refused: {error.problem}; {error.remedy}"
                return replace(prepared, plan=replace(plan, notes=(*plan.notes, note)))
            return prepared
        if guarded_window(table.uri, declared) is None:
            return prepared

        def apply() -> R:
            from delta_maintenance.table.evidence.overwritten_commits import verify_guarded

            with locating(table=table.uri):
                require_quiet_window()
            try:
                return prepared.apply()
            finally:
                verify_guarded(table.store)

        return replace(prepared, apply=apply)

    def is_held_by(self, last_runs: Iterable[LastRun]) -> str | None:
        """Returns why the operation must not run on a corrupt table, as one clause; None if it may.

        Reported corruption lasts until `fsck` finds none.
        """
        if self.runs_on_corrupt or self.effects.only_reads:
            return None
        reported = ((r.operation, r.corruption) for r in last_runs if r.corruption is not None)
        return next((f"{name} reported corruption: {problem}" for name, problem in reported), None)

    def require_job_possible(self, table: Table, options: O) -> None:
        """Raises if a Spark job with these Options would certainly be refused.

        For callers that submit a job without a plan, because a driver takes long to start.
        """
        if self.spark is not None and self.spark.require is not None:
            load(self.spark.require)(table.snapshot(), options)

    def needs_job(self, plan: P) -> bool:
        """Returns whether a Spark job must apply a plan of this process."""
        return self.spark is not None and self.spark.needs_job(plan)


def load(reference: str) -> Any:
    """Loads the object of a reference `package.module:attribute`."""
    module, _, attributes = reference.partition(":")
    return reduce(getattr, attributes.split("."), import_module(module))
