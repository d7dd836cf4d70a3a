"""`plan`, `apply` and `prepare` of the operations that rewrite data files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.execution import RewriteCommit, execute
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.planning import Survey, plan_fields, survey
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

Options = TypeVar("Options", bound=RewriteOptions)
Plan = TypeVar("Plan", bound=RewritePlan)
Result = TypeVar("Result", bound=RewriteResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteVerb(Generic[Options, Plan, Result]):
    """The specific properties of one operation that rewrites data files."""

    options_type: type[Options]
    plan_type: type[Plan]
    result_type: type[Result]
    operation: Literal["OPTIMIZE", "REORG"]
    """The name in `commitInfo`."""
    parameters: Mapping[str, Any]
    """`operationParameters` in `commitInfo`, besides the predicate."""
    rules: Callable[[Options, int], ChoiceRules]
    """Returns the rules for choosing files, given the size of new files in bytes."""
    footer_reasons: Callable[[Options], Sequence[str]]
    """Returns the requested reasons that require the footers of data files."""
    reason: Callable[[Mapping[str, Any]], str]
    """Returns the reason of a plan, given its fields."""
    held: Callable[[Snapshot, Options, RunContext], tuple[str, ...]] = lambda *_: ()
    """Returns notes about who can still read what the operation removes."""

    def plan(
        self, snapshot: Snapshot, options: Options | None = None, context: RunContext | None = None
    ) -> Plan:
        """Chooses the files to rewrite. Reads the log, and footers if the options require them.

        Raises `UnsupportedFeatureError` or `RefusedError` for tables that this release must not
        rewrite, and `InvalidRequestError` for an invalid condition.
        """
        options = (options or self.options_type()).validated()
        context = context or RunContext()
        surveyed = self._survey(snapshot, options, context.started)
        return self._with_holders(surveyed, options, context)

    def apply(
        self,
        table: Table,
        plan: Plan,
        context: RunContext | None = None,
        *,
        surveyed: Survey | None = None,
    ) -> Result:
        """Chooses files of the latest version by the options of the plan, rewrites and commits
        them.

        `surveyed` is the survey on which the plan is based, if the caller has it; it is not
        repeated. Errors before the first commit are raised, and so is a commit with an unknown
        outcome. The Result contains all other errors.
        """
        context = context or RunContext()
        options = cast("Options", plan.options)
        if plan.is_noop:
            return self._nothing(plan)
        if plan.engine == "spark" and context.engine is None:
            raise InvalidRequestError(
                "the plan is for Spark",
                table=table.uri,
                version=plan.version,
                remedy="submit the Spark job, or plan with --engine local (engine)",
            )
        if surveyed is None:
            surveyed = self._survey(table.snapshot(), options, context.now())
        if not surveyed.choice.bin_count:
            return self._nothing(self._planned(surveyed, options, context.now()))
        predicate = [] if options.where is None else [options.where]
        commit = RewriteCommit(
            operation=self.operation,
            parameters={"predicate": predicate, **self._parameters(surveyed, options)},
        )
        if surveyed.engine != "spark":
            context = context.without_engine()
        return execute(table, surveyed, options, self.result_type, commit, context)

    def prepare(
        self, table: Table, options: Options, context: RunContext
    ) -> Prepared[Plan, Result]:
        """Plans, and keeps the survey for `apply`."""
        options = options.validated()
        surveyed = self._survey(context.snapshot_of(table), options, context.started)
        planned = self._with_holders(surveyed, options, context)
        return Prepared(
            plan=planned, apply=partial(self.apply, table, planned, context, surveyed=surveyed)
        )

    def _parameters(self, surveyed: Survey, options: Options) -> Mapping[str, Any]:
        """Returns `operationParameters` besides the predicate."""
        return self.parameters

    def _surveyed(self, snapshot: Snapshot, options: Options, now: datetime) -> Survey:
        """Chooses the bins."""
        return survey(
            snapshot,
            options,
            partial(self.rules, options),
            now=now,
            footer_reasons=self.footer_reasons(options),
        )

    def _survey(self, snapshot: Snapshot, options: Options, now: datetime) -> Survey:
        try:
            return self._surveyed(snapshot, options, now)
        except DeltaMaintenanceError as error:
            raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__

    def _with_holders(self, surveyed: Survey, options: Options, context: RunContext) -> Plan:
        planned = self._planned(surveyed, options, context.started)
        if planned.is_noop:
            return planned
        held = self.held(surveyed.snapshot, options, context)
        return replace(planned, notes=(*planned.notes, *held))

    def _planned(self, surveyed: Survey, options: Options, now: datetime) -> Plan:
        fields = plan_fields(surveyed)
        reason = self.reason(fields)
        if not fields["is_noop"]:
            reason = f"{reason}; {surveyed.why}"
        return self.plan_type(**fields, planned_at=now, reason=reason, options=options)

    def _nothing(self, plan: Plan) -> Result:
        return self.result_type(
            table=plan.table,
            version=plan.version,
            status="nothing-to-do",
            notes=(plan.reason, *plan.notes),
        )
