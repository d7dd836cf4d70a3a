"""The base class of all operators for Delta tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance import clock
from delta_maintenance.address import is_catalog_name
from delta_maintenance.ledger.one_operation import OneOperation, recording
from delta_maintenance.operations import core
from delta_maintenance.operations.core.logged_progress import LoggedProgress
from delta_maintenance_airflow.hooks.delta import DeltaHook, PolicyHook
from delta_maintenance_airflow.ledger import operation_ledger
from delta_maintenance_airflow.lineage import LineageFacts, ReportsLineage
from delta_maintenance_airflow.links import HealthPageLink, ReportLink
from delta_maintenance_airflow.settings import policy_path
from delta_maintenance_airflow.tasks import (
    add_to_outlet_events,
    as_flag,
    flat,
    link_to,
    retrying_only_what_may_pass,
    task_key,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.core.context import Prepared
    from delta_maintenance.operations.core.registry import AnyOperation


class DeltaMaintenanceOperator(ReportsLineage, BaseOperator):
    """Runs one operation on one table: plans, logs the plan and its reason, carries it out.

    The return value, which is pushed to XCom, is a small flat JSON object: `operation`, `status`
    (`planned` with `plan_only`, otherwise that of the Result), and the fields of the Result, or of
    the Plan. Of each list it has the first ten items as text. A task that fails after a part of its
    work pushes it too.

    The event of every asset in `outlets` has `delta_version`, `operation` and `status`. Temporary
    errors (the store is unavailable, another writer committed first) are retried as the task
    specifies; all other errors fail the task at once.

    :param table_uri: the address of the table: a path, or a URI such as `s3://lake/events`; or its
        name in a catalog, such as `uc://main.sales.orders`. (templated)
    :param options: fields of the operation's Options. Durations are `timedelta` or ISO 8601
        (`P30D`). Empty values stand for the defaults. (templated)
    :param plan_only: only report what would be done, and why. (templated)
    :param delta_conn_id: the connection with the storage options of the table, or of its catalog;
        None if the environment of the worker provides them. See `DeltaHook`. (templated)
    :param ledger: the address of a ledger that gets a row for the operation, accessed by
        `delta_conn_id`. The default is the ledger of `[delta_maintenance] policy`, if it names one.
        (templated)
    :param policy: a policy file, for operations that delete: what it keeps of the table is kept,
        that is its kept versions, readers, clones and retentions. Without it, a warning is logged
        if `[delta_maintenance] policy` names the table. (templated)
    """

    operation: ClassVar[str]
    """The verb of the command line. All other properties of the operation are in its record."""

    operator_extra_links: Collection[BaseOperatorLink] = (HealthPageLink(), ReportLink())
    template_fields: Sequence[str] = (
        "table_uri",
        "options",
        "plan_only",
        "delta_conn_id",
        "ledger",
        "policy",
    )
    template_fields_renderers = {"options": "json"}
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        table_uri: str,
        options: Mapping[str, Any] | None = None,
        plan_only: bool | str = False,
        delta_conn_id: str | None = None,
        ledger: str | None = None,
        policy: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # The output of another task is not a mapping before it is rendered.
        given_options = set(options) if isinstance(options, Mapping) else set()
        for name in given_options.intersection(self.template_fields):
            raise ValueError(f"give the argument `{name}`, not an option of this name")
        self.table_uri = table_uri
        self.options = options
        self.plan_only = plan_only
        self.delta_conn_id = delta_conn_id
        self.ledger = ledger
        self.policy = policy
        self._options_at: Callable[[str], Mapping[str, str] | None] | None = None
        self._lineage: LineageFacts | None = None

    @property
    def catalog_name(self) -> str | None:
        """The name of the table in its catalog; None for an address."""
        return self.table_uri if is_catalog_name(self.table_uri) else None

    def _catalog_name_entry(self) -> dict[str, str]:
        return {} if self.catalog_name is None else {"catalog_name": self.catalog_name}

    @property
    def record(self) -> AnyOperation:
        """The record of the operation."""
        return core.find(self.operation)

    def lineage(self) -> LineageFacts | None:
        at_start = LineageFacts(
            table_uri=self.table_uri,
            catalog_name=self.catalog_name,
            written=not as_flag(self.plan_only, "plan_only"),
        )
        return self._lineage or at_start

    def execute(self, context: Context) -> dict[str, Any]:
        plan_only = as_flag(self.plan_only, "plan_only")
        with self.record_work(context):
            options = core.read_options(self.record, self._given(context))
            core.require_use_of_quiet(options)
            if self.record.keeps_for_holders or self.policy:
                options = self._keep_promises(options)
            return self.finish(context, self.run(options, plan_only=plan_only), planned=plan_only)

    @contextmanager
    def record_work(self, context: Context) -> Iterator[OneOperation]:
        """Records the work of the block in the ledger, also if it fails. Raises only errors for
        which a retry can help as they are.
        """
        with retrying_only_what_may_pass():
            ledger = operation_ledger(self.ledger, self.hook, link=link_to(context))
            plans = as_flag(self.plan_only, "plan_only")
            with recording(self.record, ledger, name=lambda: self.table_uri, plans=plans) as run:
                self._one = run
                yield run

    def finish(self, context: Context, document: Any, *, planned: bool) -> dict[str, Any]:
        """Reports the Result, or the Plan, of the task, and returns its facts for XCom.

        Raises the error that ends the task if the operation did not succeed.
        """
        record = self.record
        self._one.document = document
        outcome = self._logged_facts(document, planned=planned)
        self._lineage = LineageFacts(
            table_uri=document.table if self.catalog_name is not None else self.table_uri,
            catalog_name=self.catalog_name,
            written=not planned and record.wrote_to_table(document),
            facts=outcome,
            results=[] if planned else [document.to_json()],
        )
        conclusion = record.conclusion_of_plan(document) if planned else record.conclusion(document)
        error = conclusion.error(table=document.table, version=document.version)
        if error is not None:
            # Airflow pushes the return value of a task only if it succeeds.
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=outcome)
            raise error
        if not planned:
            extra = {
                "delta_version": document.version,
                "operation": outcome["operation"],
                "status": outcome["status"],
                **self._catalog_name_entry(),
            }
            add_to_outlet_events(self, context, self.table_uri, extra)
        return outcome

    def run(self, options: Any, *, plan_only: bool) -> Any:
        """Returns the Plan, or the Result."""
        prepared = self.plan_and_log(options, plan_only=plan_only)
        assert prepared is not None, "this process is the only engine"
        return prepared.plan if plan_only else prepared.apply()

    def plan_and_log(self, options: Any, *, plan_only: bool) -> Prepared[Any, Any] | None:
        """Plans, and logs the reason; None if only a job can make the plan."""
        prepared = self.prepare(options, plan_only=plan_only)
        if prepared is not None:
            self.log_reason(prepared.plan)
        return prepared

    def prepare(self, options: Any, *, plan_only: bool) -> Prepared[Any, Any] | None:
        """Opens the table and plans; None if only a job can make the plan."""
        context = core.RunContext(
            started=self._one.started,
            progress=LoggedProgress(self.log),
            plan_only=plan_only,
            report=self.new_report(),
            storage_options=self._options_at or self.hook.options_for,
        )
        table = self.hook.open_table(self.table_uri)
        self._one.measure(table.store)
        return self.record.prepare(table, options, context)

    def _keep_promises(self, options: Any) -> Any:
        """Returns the options with what the policy keeps of the table. Without a policy, logs a
        warning if that of the configuration names the table.
        """
        # Imported here, because the files of Dags are parsed often.
        from delta_maintenance.policies.promises.for_operation import Promises

        table = self.hook.open_table(self.table_uri)
        promises = Promises(
            record=self.record,
            address=table.uri,
            catalog_name=self.catalog_name,
            options_at=self.hook.options_for,
            rule_options=lambda rule, uri: PolicyHook(rule).storage_options(uri),
            policy=self.policy or None,
            other_policies=lambda: filter(None, [policy_path()]),
            warn=self._warn,
        )
        options, self._options_at = promises.keep(options, table)
        return options

    def _warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.log.warning("%s", core.replace_flags(warning))

    def new_report(self) -> str | None:
        """Returns the address of the report of this try; None without a report."""
        return None

    def report_address(self, document: Any) -> str | None:
        """Returns the address of the report, if one was requested."""
        return None

    def log_reason(self, plan: Any) -> None:
        """Logs the reason of the plan."""
        name = self.catalog_name or plan.table
        self.log.info("%s, version %d: %s", name, plan.version, plan.reason)

    @property
    def hook(self) -> DeltaHook:
        """The hook for the connection to the store."""
        return DeltaHook(self.delta_conn_id)

    def _given(self, context: Context) -> dict[str, Any]:
        record = self.record
        field_names = [
            field.name for field in fields(record.options) if field.name in self.template_fields
        ]
        options = {**(self.options or {}), **{name: getattr(self, name) for name in field_names}}
        options = {name: value for name, value in options.items() if value not in (None, "")}
        if record.commits_by_name and "operation_id" not in options:
            options["operation_id"] = self._operation_id(context, options)
            # No try can have begun before the run was due, and this time is the same in every try.
            options.setdefault("operation_since", context["dag_run"].run_after)
            self.log.info("operation id %s", options["operation_id"])
        # Added after the ID, which must not depend on the connection.
        if record.asks_for_writers:
            declared = self.hook.other_writers if "other_writers" not in options else None
            options |= {"other_writers": declared} if declared else {}
        return options

    def _operation_id(self, context: Context, options: Mapping[str, Any]) -> str:
        """Returns an ID that is the same in every try of this task, so that concurrent tries commit
        once.

        A cleared task has another ID, and so has a task whose templates result in other values.
        """
        request = json.dumps(
            [*task_key(self, context), self.table_uri, options], sort_keys=True, default=str
        )
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"airflow:{request}"))

    def _logged_facts(self, document: Any, *, planned: bool) -> dict[str, Any]:
        """Logs the Plan or the Result, and returns its facts for XCom."""
        record, document_facts = self.record, document.to_json()
        # Omitted: the arguments of the task. The report has the same name for all operations.
        for name in ("options", "report"):
            document_facts.pop(name, None)
        status = "planned" if planned else document_facts.pop("status")
        report = self.report_address(document)
        totals = {**record.totals(document), **({} if report is None else {"report_uri": report})}
        name = self.catalog_name or document.table
        succeeded = planned or record.outcome_of(status).succeeded
        log = self.log.info if succeeded else self.log.error
        log("%s, version %d: %s", name, document.version, status)
        for name, value in core.shown(record.facts(document)):
            for line in core.fact_lines(value) if name not in _LOGGED else ():
                self.log.info("%s: %s", name, line)
        catalog_name = self._catalog_name_entry()
        return flat(
            {
                "operation": self.operation,
                "status": status,
                **catalog_name,
                **document_facts,
                **totals,
            }
        )


class DeltaReportingOperator(DeltaMaintenanceOperator):
    """Writes all files or findings to a report, before anything is changed.

    Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param report_uri: the address of a new Parquet file outside the table. An address that ends in
        `/` is a folder, in which every try writes a file of its own. XCom has the address of that
        file as `report_uri`. (templated)
    """

    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "report_uri")

    def __init__(self, *, report_uri: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.report_uri = report_uri
        self._report: str | None = None

    def new_report(self) -> str | None:
        if not self.report_uri:
            return None
        name = f"{clock.new_id()}.parquet" if self.report_uri.endswith("/") else ""
        self._report = self.report_uri + name
        return self._report

    def reported_at(self, address: str) -> None:
        """Stores the address of the report of a Spark job, which an earlier try may have written
        elsewhere.
        """
        self._report = address

    def report_address(self, document: Any) -> str | None:
        # Some documents contain the address of the report, or None.
        report: str | None = getattr(document, "report", self._report)
        return report


_LOGGED = ("table", "version", "status", "reason")
"""Facts that are logged separately."""
