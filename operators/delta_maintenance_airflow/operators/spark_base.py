"""Operators whose work can be submitted as a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator, Prepared
from delta_maintenance_airflow.spark_submission import SparkSubmission

BY_JOB = Prepared(None, lambda: None)
"""Stands for a plan that only a job can make."""


class DeltaSparkOperator(DeltaMaintenanceOperator):
    """Works in the worker, or submits a PySpark job.

    Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param engine: `local` works in the worker; `spark` submits a PySpark job, which plans and works
        on its own; `auto` opens the table in the worker and submits a job for large work only.
        (templated)
    :param spark_conn_id: the connection to submit to; of the Apache Spark provider, which comes
        with the extra `airflow-spark`. (templated)
    :param spark_conf: Spark properties of the job. (templated)
    :param report_folder: the address of a folder in which the job leaves its report, under a new
        name each time; the worker reads it with the storage options of the table. Needed where the
        driver runs on the cluster (deploy mode `cluster`), which also needs an identity of its own:
        credentials of `delta_conn_id` stay in the worker. Otherwise a temporary file of the worker
        does. (templated)
    """

    pins_version: ClassVar[bool] = False
    """Whether the job works on the version of the plan, and not on the newest one."""
    plans_by_job: ClassVar[bool] = False
    """Whether a job makes the plan too where the work is for Spark."""
    subjects = ("engine",)
    template_fields: Sequence[str] = (
        *DeltaMaintenanceOperator.template_fields,
        "engine",
        "spark_conn_id",
        "spark_conf",
        "report_folder",
    )
    template_fields_renderers = {"options": "json", "spark_conf": "json"}

    def __init__(
        self,
        *,
        engine: str = "auto",
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, Any] | None = None,
        report_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.report_folder = report_folder
        self._submission: SparkSubmission | None = None

    def read_result(self, value: Mapping[str, Any]) -> Any:
        """The Result that a job reports as JSON."""
        raise NotImplementedError

    def read_plan(self, value: Mapping[str, Any]) -> Any:
        """The Plan that a job answers with as JSON."""
        raise NotImplementedError

    def needs_job(self, plan: Any) -> bool:
        """Whether a plan of this worker is for Spark to carry out."""
        return plan.engine == "spark" and not plan.is_noop

    def report_of_job(self) -> str | None:
        """Where the job shall write the list that the Result has the beginning of."""
        return None

    def run(self, options: Any, *, plan_only: bool) -> Any:
        if options.engine == "spark" and (self.plans_by_job or not plan_only):
            # Not opened here: a table that asks for Spark may be more than the worker can hold.
            return self._submit(options, plan_only=plan_only)
        prepared = self.planned(options)
        plan = prepared.plan
        if prepared is BY_JOB:
            return self._submit(options, plan_only=plan_only)
        if plan_only:
            return plan
        if self.needs_job(plan):
            return self._submit(options, version=plan.version if self.pins_version else None)
        return prepared.apply()

    def on_kill(self) -> None:
        if self._submission is not None:
            self._submission.kill()

    def _submit(self, options: Any, *, version: int | None = None, plan_only: bool = False) -> Any:
        self._submission = SparkSubmission(
            spark_conn_id=self.spark_conn_id,
            spark_conf=self.spark_conf,
            delta_hook=self.hook,
            report_folder=self.report_folder,
        )
        document = self._submission.run(
            self.operation,
            self.table_uri,
            {**options.to_json(), "engine": "spark"},
            version=version,
            report_uri=self.report_of_job(),
            plan_only=plan_only,
        )
        if not plan_only:
            return self.read_result(document)
        plan = self.read_plan(document)
        self.log_reason(plan)
        return plan
