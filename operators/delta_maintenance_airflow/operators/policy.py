"""Operators for the tables of a policy: assess all of them, maintain one of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance.errors import BusyError
from delta_maintenance.operations import core
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance_airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)
from delta_maintenance_airflow.hooks.delta import PolicyHook
from delta_maintenance_airflow.lineage import LineageFacts, ReportsLineage, catalog_name_in
from delta_maintenance_airflow.links import HealthPageLink
from delta_maintenance_airflow.operators.batches import expected_work, row_alone
from delta_maintenance_airflow.operators.budget import table_budget
from delta_maintenance_airflow.policy_work import PolicyWork, report_metrics, submitter
from delta_maintenance_airflow.settings import assessment_store, leases
from delta_maintenance_airflow.tasks import (
    add_to_outlet_events,
    as_flag,
    claim,
    flat,
    link_to,
    retrying_only_what_may_pass,
    task_key,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore
    from delta_maintenance.policies.definition.policy import PolicyTable
    from delta_maintenance.policies.execute import RunEnvironment
    from delta_maintenance.policies.models import Assessment, OperationOutcome, RunResult
    from delta_maintenance_airflow.spark.submission import SparkSubmission

_PAUSE = 15.0
"""The pause in seconds before temporary failures are tried again."""
_PATIENCE = 300.0
"""The time in seconds for which a task for a person waits for another task on the same table."""
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
_ASSESSING = 60.0
"""The time in seconds after which other tables do not wait for the assessment of a table."""


class DeltaAssessOperator(BaseOperator):
    """Assesses tables of a policy, and stores the assessments for the health page.

    Returns, for every table with operations that are due or with a failed assessment: `name`,
    `uri`, `status`, `due` (the operations that a run begins or plans, in order), `waits` (those
    whose plans wait for an approval), `problem`, `acknowledged` (who knows of the failure, and for
    how long), `last_run_at`, the end of its last run, and the expected `bytes`, `seconds` and use
    of `spark`. A damaged table appears in this list and does not fail the task. Temporary failures,
    such as an unavailable store, are tried again after all other tables. A table whose assessment
    takes longer than a minute appears as `due`, with `alone`: a task of its own assesses it.

    :param tables: the tables: objects with `name` and `uri`. (templated)
    :param policy: the file with the policy; the default is `[delta_maintenance] policy` in
        Airflow's configuration. (templated)
    """

    template_fields: Sequence[str] = ("tables", "policy")
    ui_color = "#00add4"

    def __init__(
        self, *, tables: Sequence[Mapping[str, str]], policy: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.policy = policy

    def execute(self, context: Context) -> list[dict[str, Any]]:
        with retrying_only_what_may_pass():
            work, store = PolicyWork(self.policy), assessment_store()
            self.log.info(
                "%d tables of a policy with %d", len(self.tables), len(work.policy.tables)
            )
            found = self._assess_all(work, store, self.tables, link_to(context))
            again = [
                {"name": row["name"], "uri": row["uri"]}
                for row in found.values()
                if row.pop("retryable")
            ]
            if again:
                self.log.info("%d tables are assessed once more", len(again))
                time.sleep(_PAUSE)
                found |= self._assess_all(work, store, again, link_to(context))
        return [
            {key: value for key, value in row.items() if key != "retryable"}
            for row in found.values()
            if row["due"] or row["waits"] or row["status"] == "failed"
        ]

    def _assess_all(
        self,
        work: PolicyWork,
        store: AssessmentStore,
        tables: Sequence[Mapping[str, str]],
        link: str,
    ) -> dict[str, dict[str, Any]]:
        """Returns the result for each table, by its address."""
        from delta_maintenance.policies.lanes import start_jobs, wait_for

        def assess(table: Mapping[str, str]) -> dict[str, Any]:
            assessment, known, told = _assess_and_save(work, table, store, link)
            level = logging.INFO
            if assessment.status == "failed":
                level = logging.ERROR if told is None else logging.WARNING
            self.log.log(level, "%s%s", _log_line(assessment), f"; {told}" if told else "")
            due, waits = _divide(assessment, known)
            last_run_at = known.run.ended_at if known is not None and known.run else None
            return {
                "name": assessment.name,
                "uri": assessment.uri,
                "status": assessment.status,
                "due": due,
                "waits": waits,
                "problem": assessment.problem,
                "acknowledged": told,
                **expected_work(assessment, known, due),
                "last_run_at": last_run_at.isoformat() if last_run_at is not None else None,
                "retryable": assessment.status == "failed" and assessment.retryable,
            }

        jobs = start_jobs(assess, tables)
        rows = {}
        for table, job in zip(tables, jobs, strict=True):
            if wait_for(job, patience=_ASSESSING):
                row = job.result()
            else:
                row = row_alone(table, seconds=_ASSESSING)
                self.log.warning("%s answers slowly, and gets a task of its own", row["name"])
            rows[row["uri"]] = row
        return rows


class DeltaPolicyRunOperator(ReportsLineage, BaseOperator):
    """Runs the operations that are due on one table by its policy, in order.

    While another task changes the same table, in any Dag, this task is skipped; a task that changes
    nothing hinders no other. The result goes to XCom, small and flat, and to the health page. If a
    table cannot be completed, the task fails, and is retried if that may help; it is skipped if the
    failure is acknowledged. Two concurrent tasks do no harm.

    The event of every asset in `outlets` has `delta_version`, `status` and `operations`. None of
    these assets may be the table's own asset if that has a watcher or triggers this Dag.

    :param table: the table: an object with `name` and `uri`. A `problem` in it fails the task, and
        its `allotment` is what a budget lets it have; other keys are ignored. (templated)
    :param policy: see `DeltaAssessOperator`. (templated)
    :param plan_only: only report what would be done. (templated)
    :param approved: the approved operations, of those that need an approval. (templated)
    """

    template_fields: Sequence[str] = ("table", "policy", "plan_only", "approved")
    operator_extra_links = (HealthPageLink(),)
    ui_color = "#00add4"
    is_scheduled: ClassVar[bool] = True
    """Whether no person waits for the outcome: then the next run does what another task prevents,
    and acknowledged failures are left alone.
    """

    def __init__(
        self,
        *,
        table: Mapping[str, Any],
        policy: str | None = None,
        plan_only: bool | str = False,
        approved: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.policy = policy
        self.plan_only = plan_only
        self.approved = approved
        self._submissions: list[SparkSubmission] = []
        self._lineage: LineageFacts | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        if self.table.get("problem") and not self.table.get("due"):
            raise AirflowFailException(self.table["problem"])
        facts, failure = self.attempt(context)
        if failure is not None:
            # Airflow pushes the return value of a task only if it succeeds.
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=facts)
            raise failure
        return facts

    def attempt(self, context: Context) -> tuple[dict[str, Any], Exception | None]:
        """Runs the operations on the table. Returns the facts for XCom, and the exception with
        which a task for this table ends, if it is not successful.
        """
        with retrying_only_what_may_pass():
            work, store = self.policy_work(), assessment_store()
            table = work.table(self.table.get("name"), self.table.get("uri"))
            environment = self._environment(context, work, table, store)
            try:
                result = self._patiently(
                    lambda: self.work(table, environment, store.entry_of(table.uri, table.name))
                )
                entry = work.keep_run(store, result, link=link_to(context))
            except BusyError as error:
                facts = {"name": table.name, "uri": table.uri, "status": "busy", "problem": None}
                busy = AirflowSkipException if self.is_scheduled else AirflowException
                return facts, busy(str(error))
        return self._facts_of_run(context, result, entry)

    def _patiently(self, work: Callable[[], RunResult]) -> RunResult:
        """Does the work. If a person waits for it, it is tried again while another task changes the
        table, for a few minutes.
        """
        end, pause = time.monotonic() + _PATIENCE, _FIRST_PAUSE
        while True:
            try:
                return work()
            except BusyError as error:
                if self.is_scheduled or time.monotonic() >= end:
                    raise
                self.log.warning("%s; this task waits", error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def policy_work(self) -> PolicyWork:
        """The policy of the table."""
        return PolicyWork(self.policy)

    def work(
        self, table: PolicyTable, environment: RunEnvironment, known: AssessmentEntry | None
    ) -> RunResult:
        """Runs the operations. The lease of the environment keeps other tasks from changing the
        table in the meantime.
        """
        return self.runner(table, known)(
            PolicyHook(table.rules.storage).open_table(table.uri),
            table,
            last_runs=known.last_runs if known is not None else (),
            environment=environment
            if known is None
            else replace(environment, previous=known.health),
        )

    def runner(self, table: PolicyTable, known: AssessmentEntry | None) -> Callable[..., RunResult]:
        """Returns the function that runs the operations on the opened table."""
        from delta_maintenance import clock
        from delta_maintenance.policies.approval import Approvals, still_asked
        from delta_maintenance.policies.run import run

        plan_only, now = as_flag(self.plan_only, "plan_only"), clock.now()
        asked = still_asked(known.pending, known.put_off, now=now) if known is not None else ()
        approvals = Approvals(
            operations=frozenset(self.approved), asked=asked, plans_on_spark=not plan_only
        )
        return partial(run, approvals=approvals, plan_only=plan_only)

    def _environment(
        self, context: Context, work: PolicyWork, table: PolicyTable, store: AssessmentStore
    ) -> RunEnvironment:
        from delta_maintenance.policies.execute import RunEnvironment

        return RunEnvironment(
            submit=submitter(context, task_key(self, context), self._submissions.append),
            raised=(AirflowException,),
            lease=partial(leases(store).held, table.name, uri=table.uri, **claim(context)),
            clones=work.clones,
            save_files=partial(store.save_files, table.uri),
            progress=LoggedProgress(self.log),
            budget=table_budget(work, table, self.table, store, context["ti"])
            if self.is_scheduled
            else None,
        )

    def on_kill(self) -> None:
        for submission in self._submissions:
            submission.kill()

    def facts(self, result: RunResult) -> Mapping[str, Any]:
        """Returns the facts in XCom in addition to those of every run."""
        return {}

    def lineage(self) -> LineageFacts | None:
        uri = (self.table or {}).get("uri")
        if self._lineage is not None or not uri:
            return self._lineage
        return LineageFacts(
            table_uri=uri,
            catalog_name=catalog_name_in(self.table.get("name")),
            written=not as_flag(self.plan_only, "plan_only"),
        )

    def _facts_of_run(
        self, context: Context, result: RunResult, entry: AssessmentEntry | None
    ) -> tuple[dict[str, Any], Exception | None]:
        from delta_maintenance.policies.entries import acknowledgement_text

        catalog_name = catalog_name_in(result.name)
        shown = catalog_name or result.uri
        told = acknowledgement_text(entry) if result.exit_status and self.is_scheduled else None
        failed = logging.ERROR if told is None else logging.WARNING
        if not as_flag(self.plan_only, "plan_only"):
            report_metrics(result)
        for outcome in result.outcomes:
            level = failed if outcome.exit_status else logging.INFO
            line = (shown, outcome.operation, outcome.status, outcome.reason)
            self.log.log(level, "%s: %s %s: %s", *line)
        if not result.outcomes and result.before is not None:
            for each in result.before.operations:
                self.log.info("%s: %s %s: %s", shown, each.operation, each.status, each.reason)
        facts = flat(
            {
                "name": result.name,
                "uri": result.uri,
                "status": result.shown_status,
                "operations": [f"{each.operation}: {each.status}" for each in result.outcomes],
                "version": _version(result.newest_assessment),
                "problem": result.problem,
                **({} if told is None else {"acknowledged": told}),
                **self._deferred(result),
                **self.facts(result),
            }
        )
        done = [each for each in result.outcomes if _may_have_written(each)]
        self._lineage = LineageFacts(
            table_uri=result.uri,
            catalog_name=catalog_name,
            written=bool(done),
            facts=facts,
            results=[each.result for each in done if each.result is not None],
        )
        if result.exit_status:
            problem = result.problem or f"{result.uri}: {result.status}"
            if told is not None:
                return facts, AirflowSkipException(f"{told}: {problem}")
            return facts, (AirflowException if result.retryable else AirflowFailException)(problem)
        if not as_flag(self.plan_only, "plan_only"):
            extra = {
                "delta_version": facts["version"],
                "status": facts["status"],
                "operations": facts["operations"],
                **({} if catalog_name is None else {"catalog_name": catalog_name}),
            }
            add_to_outlet_events(self, context, result.uri, extra)
        return facts, None

    def _deferred(self, result: RunResult) -> dict[str, int]:
        """Returns how many operations wait because of the budget, if any were to."""
        newest = result.newest_assessment
        operations = newest.operations if newest is not None else ()
        number = sum(operation.status == "deferred" for operation in operations)
        return {"deferred": number} if number or self.table.get("allotment") else {}


def _assess_and_save(
    work: PolicyWork, entry: Mapping[str, str], store: AssessmentStore, link: str
) -> tuple[Assessment, AssessmentEntry | None, str | None]:
    """Assesses a table and saves the result. Returns it with the entry that was saved before, and
    the acknowledgement of the failure, if there is one.
    """
    from delta_maintenance.policies.entries import acknowledgement_text

    known = store.entry_of(entry["uri"], entry.get("name") or entry["uri"])
    assessment = _assess_one(work, entry, known)
    saved = store.keep(assessment, link=link)
    told = acknowledgement_text(saved) if assessment.status == "failed" else None
    return assessment, known, told


def _divide(assessment: Assessment, known: AssessmentEntry | None) -> tuple[list[str], list[str]]:
    """Divides the due operations into those to start or to plan, and those whose plans wait."""
    from delta_maintenance.policies.approval import put_off_operations, still_asked

    pending, put_off = (known.pending, known.put_off) if known is not None else ((), ())
    now = assessment.assessed_at
    asked = still_asked(pending, put_off, now=now)
    waiting = [e.operation for e in assessment.due if e.needs_approval and e.operation in asked]
    later = put_off_operations(put_off, now=now)
    due = [each.operation for each in assessment.due if each.operation not in waiting]
    return due, [operation for operation in waiting if operation not in later]


def _assess_one(
    work: PolicyWork, entry: Mapping[str, str], known: AssessmentEntry | None
) -> Assessment:
    from delta_maintenance import clock
    from delta_maintenance.errors import failure_of
    from delta_maintenance.policies.assess import assess_table
    from delta_maintenance.policies.models import Assessment

    uri = entry["uri"]
    name = entry.get("name") or uri
    try:
        table = work.table(name, uri)
        # A table that was given by its name has the address in its catalog.
        name, uri = table.name, table.uri
        return assess_table(
            PolicyHook(table.rules.storage).open_table(table.uri),
            table,
            now=clock.now(),
            last_runs=known.last_runs if known is not None else (),
            previous=known.health if known is not None else None,
        )
    except AirflowException as error:
        # For example a missing connection: other tables have other connections.
        problem, retryable = " ".join(str(error).split()), False
    except Exception as error:
        failure = failure_of(error, where=name)
        problem, retryable = str(failure), failure.retryable
    return Assessment(
        name=name,
        uri=uri,
        assessed_at=clock.now(),
        status="failed",
        problem=problem,
        exit_status=1,
        retryable=retryable,
    )


def _may_have_written(outcome: OperationOutcome) -> bool:
    record = core.known(outcome.operation)
    if outcome.status not in ("done", "incomplete", "failed"):
        return False
    if record is None or outcome.result is None:
        return True
    return record.wrote_to_table(record.result.from_json(outcome.result))


def _version(assessment: Assessment | None) -> int | None:
    health = assessment.health if assessment is not None else None
    return health.version if health is not None else None


def _log_line(assessment: Assessment) -> str:
    due = ", ".join(f"{each.operation} ({each.reason})" for each in assessment.due)
    if due or assessment.problem:
        return f"{assessment.name}: {due or assessment.problem}"
    why = "; ".join(f"{each.operation} {each.reason}" for each in assessment.operations)
    return f"{assessment.name}: {assessment.status}: {why or 'its policy requests nothing'}"
