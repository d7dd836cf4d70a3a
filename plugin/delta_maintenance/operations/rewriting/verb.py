"""`plan`, `apply` and `prepare` of the operations that rewrite data files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

from delta_maintenance.errors import CommitUnknownError, DeltaMaintenanceError, locating
from delta_maintenance.operations.core.context import Prepared, RunContext
from delta_maintenance.operations.core.facts import count_text
from delta_maintenance.operations.rewriting.choice import ChoiceRules
from delta_maintenance.operations.rewriting.commits import CommitSettings
from delta_maintenance.operations.rewriting.engine import LocalEngine
from delta_maintenance.operations.rewriting.models import (
    BinReport,
    RewriteOptions,
    RewritePlan,
    RewriteResult,
)
from delta_maintenance.operations.rewriting.planning import Survey, plan_fields, survey
from delta_maintenance.operations.rewriting.run import RewriteRun, RunSettings, Work
from delta_maintenance.operations.rewriting.sources import chosen_adds
from delta_maintenance.table.read.partition_codes import partition_types
from delta_maintenance.table.read.snapshot import Snapshot
from delta_maintenance.table.read.table import Table

_SHOWN_BINS = 1000
_SHOWN_FILES = 100
_LANDED = ("committed", "remapped", "written-again")
_FAILED = ("failed", "not-proved")
_LOST = ("dropped", "contended", "table-changed")

R = TypeVar("R", bound=RewriteResult)


def _execute(
    table: Table,
    surveyed: Survey,
    options: RewriteOptions,
    result: type[R],
    commit: CommitSettings,
    context: RunContext,
) -> R:
    """Rewrites and commits the bins of a survey, by default in threads of this process.

    Before the first commit, errors are raised. After it, the Result contains them.
    `CommitUnknownError` is always raised.
    """
    choice = surveyed.choice
    adds = chosen_adds(surveyed.snapshot, surveyed.files, choice)
    work = Work(
        adds=adds,
        bins=choice.bins,
        reasons=tuple(choice.reasons_of(row) for row in choice.rows.tolist()),
        partition_types=partition_types(surveyed.snapshot),
    )
    started = context.now()
    settings = RunSettings(
        commit=commit,
        until=_later(started, options.max_duration),
        workers=options.workers,
        progress=context.progress,
    )
    engine = context.engine or LocalEngine(table.store, new_id=context.new_id)
    run = RewriteRun(table, surveyed.snapshot, surveyed.contract, work, engine, settings)
    problem: str | None = None
    try:
        run.through()
    except DeltaMaintenanceError as error:
        if not run.commits.commits or isinstance(error, CommitUnknownError):
            raise error.locate(table=table.uri) from error.__cause__
        problem = str(error.locate(table=table.uri))
    return _result(table, surveyed, run, result, problem)


def _later(instant: datetime, by: timedelta | None) -> datetime | None:
    """Returns the end of a duration; None if `datetime` cannot represent it."""
    try:
        return None if by is None else instant + by
    except OverflowError:
        return None


def _result(
    table: Table, surveyed: Survey, run: RewriteRun, result: type[R], problem: str | None
) -> R:
    reports = run.reports()
    landed = [report for report in reports if report.fate in _LANDED]
    fates: dict[str, int] = {}
    for report in reports:
        fates[report.fate] = fates.get(report.fate, 0) + 1
    status, why = _status(reports, landed, run)
    return result(
        table=table.uri,
        version=run.commits.version,
        engine=surveyed.engine,
        status="partly" if problem is not None else status,
        files_before=sum(report.num_sources for report in landed),
        files_after=sum(len(report.outputs) for report in landed),
        bytes_before=sum(report.bytes_before for report in landed),
        bytes_after=sum(report.bytes_after for report in landed),
        rows=sum(report.rows for report in landed),
        num_bins=len(reports),
        num_commits=run.commits.commits,
        fates=fates,
        bins=tuple(sorted(reports, key=lambda report: report.fate in _LANDED)[:_SHOWN_BINS]),
        refused=tuple(run.refused[:_SHOWN_FILES]),
        num_refused=len(run.refused),
        problem=problem or why,
        notes=_notes(fates, landed, run),
    )


def _status(
    reports: Sequence[BinReport], landed: Sequence[BinReport], run: RewriteRun
) -> tuple[Literal["rewritten", "partly", "conflict", "failed", "nothing-to-do"], str | None]:
    """Returns the status of the run, and its problem if there is one."""
    failed = next((report for report in reports if report.fate in _FAILED), None)
    if failed is not None:
        return "failed", failed.problem
    damaged = next((file for file in run.refused if file.damaged), None)
    if damaged is not None:
        return "failed", damaged.problem
    if run.commits.table_changed is not None:
        return ("partly" if landed else "conflict"), run.commits.table_changed
    lost = next((report for report in reports if report.fate in _LOST), None)
    if lost is not None and not landed:
        return "conflict", lost.problem
    return ("rewritten" if landed else "nothing-to-do"), None


def _notes(
    fates: Mapping[str, int], landed: Sequence[BinReport], run: RewriteRun
) -> tuple[str, ...]:
    notes = []
    unbounded = sorted({bin_.unbounded for bin_ in landed if bin_.unbounded is not None})
    for column in unbounded:
        notes.append(f"files without bounds of {column} are not called clustered")
    if any(bin_.is_clustered is False and bin_.unbounded is None for bin_ in landed):
        notes.append("files that overlap as much as before are not called clustered")
    lost = sum(fates.get(fate, 0) for fate in ("superseded", *_LOST))
    if lost:
        bins = count_text(lost, "bin")
        notes.append(f"given up because other writers changed the table: {bins}")
    if fates.get("not-started"):
        notes.append(f"not started: {count_text(fates['not-started'], 'bin')}")
    if run.refused:
        notes.append(f"left out: {count_text(len(run.refused), 'file')}")
    return tuple(notes)


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
        context.require_engine(plan)
        if surveyed is None:
            surveyed = self._survey(table.snapshot(), options, context.now())
        if not surveyed.choice.bin_count:
            return self._nothing(self._planned(surveyed, options, context.now()))
        predicate = [] if options.where is None else [options.where]
        commit = CommitSettings(
            operation=self.operation,
            parameters={"predicate": predicate, **self._parameters(surveyed, options)},
            writer=context.writer(options),
        )
        if surveyed.engine != "spark":
            context = context.without_engine()
        return _execute(table, surveyed, options, self.result_type, commit, context)

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
        with locating(table=snapshot.table, version=snapshot.version):
            return self._surveyed(snapshot, options, now)

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
