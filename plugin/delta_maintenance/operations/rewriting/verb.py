"""`plan`, `apply` and `prepare` of the operations that rewrite data files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from delta_maintenance import clock
from delta_maintenance.clock import Clock, NewId
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.operations.core.execution import Execution, Prepared
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.engine import BinEngine
from delta_maintenance.operations.rewriting.execution import RewriteExecution, execute
from delta_maintenance.operations.rewriting.models import RewriteOptions, RewritePlan, RewriteResult
from delta_maintenance.operations.rewriting.planning import Survey, plan_fields, survey
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

Options = TypeVar("Options", bound=RewriteOptions)
Plan = TypeVar("Plan", bound=RewritePlan)
Result = TypeVar("Result", bound=RewriteResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySettings:
    """The arguments of `apply` besides the table and the plan."""

    now: Clock = field(default_factory=lambda: clock.now)
    new_id: NewId = field(default_factory=lambda: clock.new_id)
    engine: BinEngine | None = None
    progress: Progress | None = None
    surveyed: Survey | None = None
    """The survey on which the plan is based; it is not repeated."""
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteVerb(Generic[Options, Plan, Result]):
    """The specific properties of one operation that rewrites data files."""

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
    target_bytes: Callable[[Options], int | None] = lambda _: None
    """Returns the size of new files in bytes, if the options contain one."""

    def plan(self, snapshot: Snapshot, options: Options, *, now: datetime) -> Plan:
        """Chooses the files to rewrite."""
        options = options.validated()
        return self._planned(self._survey(snapshot, options, now), options, now)

    def apply(self, table: Table, plan: Plan, options: Options, settings: ApplySettings) -> Result:
        """Chooses files of the latest version by the options of the plan, and rewrites them."""
        if plan.is_noop:
            return self._nothing(plan)
        if plan.engine == "spark" and settings.engine is None:
            raise InvalidRequestError(
                "the plan is for Spark",
                table=table.uri,
                version=plan.version,
                remedy="submit the Spark job, or plan with the local engine",
            )
        surveyed = settings.surveyed
        if surveyed is None:
            surveyed = self._survey(table.snapshot(), options, settings.now())
        if not surveyed.choice.bin_count:
            return self._nothing(self._planned(surveyed, options, settings.now()))
        predicate = [] if options.where is None else [options.where]
        execution = RewriteExecution(
            operation=self.operation,
            parameters={"predicate": predicate, **self.parameters},
            now=settings.now,
            new_id=settings.new_id,
            engine=settings.engine if surveyed.engine == "spark" else None,
            progress=settings.progress,
            sleep=settings.sleep,
        )
        return execute(table, surveyed, options, self.result_type, execution)

    def prepare(
        self, table: Table, options: Options, *, now: datetime, execution: Execution
    ) -> Prepared[Plan, Result]:
        """Plans, and keeps the survey for `apply`."""
        options = options.validated()
        surveyed = self._survey(execution.snapshot_of(table), options, now)
        planned = self._planned(surveyed, options, now)
        settings = ApplySettings(
            now=execution.now,
            new_id=execution.new_id,
            engine=execution.engine,
            progress=execution.progress,
            surveyed=surveyed,
        )
        return Prepared(plan=planned, apply=partial(self.apply, table, planned, options, settings))

    def _survey(self, snapshot: Snapshot, options: Options, now: datetime) -> Survey:
        try:
            return survey(
                snapshot,
                options,
                partial(self.rules, options),
                now=now,
                target_bytes=self.target_bytes(options),
                footer_reasons=self.footer_reasons(options),
            )
        except DeltaMaintenanceError as error:
            raise error.located(table=snapshot.table, version=snapshot.version) from error.__cause__

    def _planned(self, surveyed: Survey, options: Options, now: datetime) -> Plan:
        fields = plan_fields(surveyed)
        reason = self.reason(fields)
        if not fields["is_noop"]:
            reason = f"{reason}; {surveyed.why}"
        return self.plan_type(**fields, planned_at=now, reason=reason, options=options)

    def _nothing(self, plan: Plan) -> Result:
        return self.result_type(
            table=plan.table, version=plan.version, status="nothing-to-do", notes=(plan.reason,)
        )
