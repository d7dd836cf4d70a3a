"""The base class of operators that can submit their work as a Spark job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from delta_maintenance.errors import DeltaMaintenanceError, RefusedError, UnsupportedFeatureError
from delta_maintenance_airflow.links import HealthPageLink, ReportLink, SparkUILink
from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator
from delta_maintenance_airflow.settings import report_folder
from delta_maintenance_airflow.spark.submission import SparkSubmission, runs_driver_on_cluster

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.operations.core.context import Prepared


class DeltaJobOperator(DeltaMaintenanceOperator):
    """Submits PySpark jobs.

    Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param spark_conn_id: the connection to which jobs are submitted, of the Apache Spark provider,
        which the extra `airflow-spark` installs. The default is the one that the connection of the
        table names, or `spark_default`. (templated)
    :param spark_conf: Spark properties of the job; properties that load code or contain secrets
        are refused. (templated)
    :param spark_code: how the executors get the library, as fields of
        `delta_maintenance.submission.specification.Code`: `application`, `py_files`, `archives`,
        `python`, `image`. By default, the library of the worker is sent to a standalone cluster or
        YARN. (templated)
    :param report_folder: the address of a folder in which the job writes its report, under a new
        name each time; the worker reads it with the storage options of the table. The default is
        `[delta_maintenance] report_folder`. Required if the driver runs on the cluster (deploy mode
        `cluster`). Such a driver also needs an identity of its own, because credentials of
        `delta_conn_id` stay in the worker. Without a folder, the report is a temporary file of the
        worker, which other workers do not see. (templated)
    """

    template_fields: Sequence[str] = (
        *DeltaMaintenanceOperator.template_fields,
        "spark_conn_id",
        "spark_conf",
        "spark_code",
        "report_folder",
    )
    template_fields_renderers = {"options": "json", "spark_conf": "json", "spark_code": "json"}
    operator_extra_links = (HealthPageLink(), ReportLink(), SparkUILink())

    def __init__(
        self,
        *,
        spark_conn_id: str | None = None,
        spark_conf: Mapping[str, Any] | None = None,
        spark_code: Mapping[str, Any] | None = None,
        report_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.spark_code = spark_code
        self.report_folder = report_folder
        self._submission: SparkSubmission | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        self._context = context
        return super().execute(context)

    def run(self, options: Any, *, plan_only: bool) -> Any:
        spark = self.record.spark
        assert spark is not None
        if getattr(options, "engine", None) == "spark" and (spark.plans_by_job or not plan_only):
            # Not planned here, because a table for Spark may exceed the memory of the worker.
            return self._run_job(options, plan_only=plan_only, unplanned=True)
        prepared = self.plan_and_log(options, plan_only=plan_only)
        if prepared is None:
            return self._run_job(options, plan_only=plan_only)
        return prepared.plan if plan_only else prepared.apply()

    def _require_possible(self, options: Any) -> None:
        """Raises if the table does not allow the operation, before a driver is started."""
        spark = self.record.spark
        if spark is None or spark.require is None:
            return
        if runs_driver_on_cluster(self._spark_conn_id()):
            # On a cluster, the driver has an identity of its own, and the worker may have none.
            return
        try:
            self.record.require_job_possible(self.hook.open_table(self.table_uri), options)
        except (RefusedError, UnsupportedFeatureError):
            raise
        except DeltaMaintenanceError as error:
            self.log.info("the job will examine the table: %s", error)

    def _spark_conn_id(self) -> str:
        return self.spark_conn_id or self.hook.spark_conn_id or "spark_default"

    def prepare(self, options: Any, *, plan_only: bool) -> Prepared[Any, Any] | None:
        prepared, record = super().prepare(options, plan_only=plan_only), self.record
        if prepared is None or record.spark is None or not record.needs_job(prepared.plan):
            return prepared
        version = prepared.plan.version if record.spark.pins_version else None
        return replace(prepared, apply=lambda: self._run_job(options, version=version))

    def _run_job(
        self,
        options: Any,
        *,
        version: int | None = None,
        plan_only: bool = False,
        unplanned: bool = False,
    ) -> Any:
        """Returns the Result of a job, or its Plan."""
        record = self.record
        engine = {"engine": "spark"} if record.chooses_engine else {}
        document = self.submit(
            {**options.to_json(), **engine},
            version=version,
            report_uri=self.new_report(),
            plan_only=plan_only,
            settles=lambda result: (
                record.conclusion(record.result.from_json(result)).outcome.succeeded
            ),
            require=partial(self._require_possible, options) if unplanned else lambda: None,
        )
        return self._parse_document(document, planned=plan_only)

    def _parse_document(self, document: Mapping[str, Any], *, planned: bool) -> Any:
        # Loads records, which Dag parsing must not.
        from delta_maintenance.submission.job_report import split_task_seconds

        document, seconds = split_task_seconds(document)
        self._one.worked_on_spark(seconds)
        if not planned:
            return self.record.result.from_json(document)
        plan = self.record.plan.from_json(document)
        self.log_reason(plan)
        return plan

    def submit(
        self,
        options: Mapping[str, Any],
        *,
        version: int | None = None,
        report_uri: str | None = None,
        plan_only: bool = False,
        settles: Callable[[Mapping[str, Any]], bool] = lambda _: True,
        require: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Runs the operation as a job, and returns the JSON of its Result, or of its Plan.

        `settles` decides whether the Result of an earlier try's job is sufficient. `require` raises
        if the job would certainly be refused.
        """
        request = {"operation": self.operation, "plan_only": plan_only, **options}
        submission = self._submission_of(self._operation_id(self._context, request))
        require()
        document = submission.run(
            self.operation,
            self.table_uri,
            options,
            version=version,
            report_uri=report_uri,
            plan_only=plan_only,
            settles=settles,
        )
        if submission.report_uri is not None:
            self.reported_at(submission.report_uri)
        return document

    def _submission_of(self, key: str) -> SparkSubmission:
        self._submission = SparkSubmission(
            spark_conn_id=self._spark_conn_id(),
            spark_conf=self.spark_conf,
            spark_code=self.spark_code,
            delta_hook=self.hook,
            report_folder=self.report_folder or report_folder(),
            key=key,
            context=self._context,
        )
        return self._submission

    def reported_at(self, address: str) -> None:
        """Stores the address of the list that the job has written."""

    def on_kill(self) -> None:
        if self._submission is not None:
            self._submission.kill()


class DeltaSparkOperator(DeltaJobOperator):
    """Works in the worker, or submits a PySpark job.

    Takes the parameters of `DeltaJobOperator`, and:

    :param engine: `local` works in the worker; `spark` submits a PySpark job, which also makes the
        plan; `auto` opens the table in the worker and submits a job only for large work.
        (templated)
    """

    template_fields: Sequence[str] = (*DeltaJobOperator.template_fields, "engine")

    def __init__(self, *, engine: str = "auto", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.engine = engine
