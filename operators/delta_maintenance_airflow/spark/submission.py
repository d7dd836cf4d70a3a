"""Runs an operation as a Spark job, through a connection of the Apache Spark provider.

The provider starts `spark-submit` and ends it; `delta_maintenance.submission` has the specification
and the report of the job. With a connection to Spark Connect, the job runs in this process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import BaseHook

from delta_maintenance import clock
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.links import SparkUILink
from delta_maintenance_airflow.spark.folder import (
    JobFolder,
    Reports,
    report_address,
    without_report,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance.storage import Store
    from delta_maintenance.submission.job_report import JobReport
    from delta_maintenance.submission.job_spec import JobSpec
    from delta_maintenance.submission.specification import Code
    from delta_maintenance_airflow.hooks.delta import DeltaHook

_log = logging.getLogger(__name__)


class _Killable(Protocol):
    def on_kill(self) -> None: ...


@dataclass(kw_only=True, eq=False, repr=False)
class SparkSubmission:
    """One run of a Spark job, or the continuation of one that an earlier try of the task started.

    The arguments of a job, which the process list and Airflow's log show, never contain
    credentials: a driver in the worker reads them from a private file, and a driver on the cluster
    has its own.

    `key` is the same in every try of a task, and different after the task is cleared.
    """

    spark_conn_id: str
    spark_conf: Mapping[str, Any] | None
    spark_code: Mapping[str, Any] | None
    delta_hook: DeltaHook
    report_folder: str | None
    key: str
    context: Context
    report_uri: str | None = field(default=None, init=False)
    """The address of the list that the job has written, if one was requested."""
    _running: _Killable | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._folder = JobFolder(self.key)

    def run(
        self,
        operation: str,
        table_uri: str,
        options: Mapping[str, Any],
        *,
        version: int | None = None,
        report_uri: str | None = None,
        plan_only: bool = False,
        approved: Mapping[str, Any] | None = None,
        settles: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Runs the job to its end and returns the JSON of its Result, or of its Plan.

        `version`, `report_uri`, `plan_only` and `approved` are those of `JobSpec`. If the driver of
        an earlier try is still running, this waits for it. If an earlier try left a Result, and
        `settles` accepts it, no job is submitted. Raises the error that the job reports;
        `AirflowFailException` if it cannot be submitted like this; and `AirflowException`, for
        Airflow to retry, if it ended without a report.
        """
        # Imported here because they load pydantic, which would slow down Dag parsing.
        from delta_maintenance.submission.configuration import checked_conf
        from delta_maintenance.submission.job_spec import JobSpec
        from delta_maintenance.submission.specification import Code

        conf = checked_conf(self.spark_conf or {})
        code = Code.from_json(dict(self.spark_code or {}))
        # The provider would use YARN for an unknown connection: fail here and name it.
        connection = BaseHook.get_connection(self.spark_conn_id)
        on_cluster = runs_driver_on_cluster(self.spark_conn_id)
        located = self.delta_hook.locate(table_uri, credentials=not on_cluster)
        spec = JobSpec.of(
            operation,
            located.address,
            version=version,
            storage_options=located.storage_options,
            options=dict(options),
            report_uri=report_uri,
            plan_only=plan_only,
            approved=None if approved is None else dict(approved),
        )
        if connection.conn_type == "spark_connect":
            return self._run_connected(spec, conf)
        if on_cluster and not self.report_folder:
            raise AirflowFailException(
                "a driver on the cluster cannot write its report in this worker: give report_folder"
            )
        with self._folder.held() as lock:
            reports = Reports(self._report_store(), self.key)
            for report in reports.unread():
                # A plan is made again, because the table may have changed meanwhile.
                if report.status == "done" and not plan_only and settles(report.result or {}):
                    _log.info("an earlier try of this task has already done the work")
                    return self._read_result(report)
            folder = self.report_folder or os.fspath(self._folder.path)
            address = report_address(folder, reports.new_name())
            settings = self._settings(spec, conf, code, address, lock, on_cluster)
            return self._read_result(self._submit(code.application, settings, reports))

    def kill(self) -> None:
        """Ends the job; may be called at any time, from a signal handler."""
        if self._running is not None:
            self._running.on_kill()
        else:
            self._folder.kill()

    def _read_result(self, report: JobReport) -> dict[str, Any]:
        self.report_uri = report.report_uri
        return report.timed_result_or_raise()

    def _submit(self, application: str, settings: Mapping[str, Any], reports: Reports) -> JobReport:
        provider = _provider()
        settings = {**settings, "output": provider.JobOutput(self._show_interface)}
        hook = provider.JobHook(**settings)
        failure: Exception | None = None
        followed = None
        try:
            if provider.can_be_followed(hook):
                followed = provider.FollowedJob(
                    task_id=self.key,
                    key=self.key,
                    settings=settings,
                    conn_id=self.spark_conn_id,
                    application=application,
                )
                self._running = followed
                followed.execute_resumable(self.context)
            else:
                self._running = hook
                hook.submit(application)
        except FileNotFoundError as error:
            raise AirflowFailException(
                f"there is no {error.filename} on this worker: install "
                "delta-maintenance[airflow-spark], or put Spark's bin folder on PATH"
            ) from error
        except Exception as error:
            failure = error
            if followed is None:
                hook.on_kill()
        except BaseException:
            # A timeout, or a request to end.
            self.kill()
            raise
        finally:
            # The process has ended and cannot be killed.
            self._running = None
        report = next(reports.unread(), None)
        if followed is not None and (report is not None or failure is None):
            provider.forget_application(self.context, self.key)
        if report is None:
            raise AirflowException(without_report(failure)) from failure
        return report

    def _settings(
        self,
        spec: JobSpec,
        conf: Mapping[str, str],
        code: Code,
        report: str,
        lock: int,
        on_cluster: bool,
    ) -> dict[str, Any]:
        from delta_maintenance.submission.spark_submit import driver_environment

        if on_cluster:
            # Files of this worker do not exist on the cluster; the specification contains no
            # credentials.
            spec_words = ["--spec", json.dumps(spec.to_json())]
        else:
            spec_words = ["--spec", spec.write(self._folder.path / f"{clock.new_id()}.spec")]
            spec_words.append("--discard-spec")
        environment = driver_environment(os.environ)
        # The installed PySpark comes last, so that another Spark of the worker takes precedence.
        environment["PATH"] = os.pathsep.join(
            [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
        )
        image = {"spark.kubernetes.container.image": code.image} if code.image else {}
        return {
            "process": {
                "env": environment,
                # Child processes must not inherit the variables that Airflow sets for a task.
                "stdin": subprocess.DEVNULL,
                "pass_fds": (lock,),
            },
            "on_start": self._folder.note_driver,
            "conn_id": self.spark_conn_id,
            "conf": {**conf, **code.conf(), **image},
            "py_files": ",".join(self._py_files(code, on_cluster)) or None,
            "archives": ",".join(code.archives) or None,
            "application_args": [*spec_words, "--report", report],
            "name": f"delta-maintenance {spec.operation}",
        }

    def _py_files(self, code: Code, on_cluster: bool) -> tuple[str, ...]:
        """Returns the named files; by default this library, so that executors run the driver's
        code.
        """
        if code.py_files or code.archives or code.image or code.python:
            return code.py_files
        host = BaseHook.get_connection(self.spark_conn_id).host or ""
        # Kubernetes accepts files of the worker only through a store, which must be configured.
        if host.startswith("local") or (host.startswith("k8s") and on_cluster):
            return ()
        from delta_maintenance.submission.spark_submit import write_library

        return (write_library(self._folder.path),)

    def _run_connected(self, spec: JobSpec, conf: Mapping[str, str]) -> dict[str, Any]:
        from delta_maintenance_airflow.spark.connect import ConnectedJob

        if conf or self.spark_code:
            raise AirflowFailException(
                "a server of Spark Connect has its properties and its Python: leave spark_conf and "
                "spark_code out"
            )
        job = ConnectedJob(self.spark_conn_id)
        self._running = job
        try:
            report = job.run(spec)
        finally:
            self._running = None
        return self._read_result(report)

    def _report_store(self) -> Store:
        from delta_maintenance.storage import open_store

        if not self.report_folder:
            return open_store(os.fspath(self._folder.path))
        return open_store(self.report_folder, self.delta_hook.options_for(self.report_folder))

    def _show_interface(self, address: str) -> None:
        # Stored while the job runs; Airflow calls the link itself at the end of the task.
        try:
            self.context["ti"].xcom_push(key=SparkUILink().xcom_key, value=address)
        except Exception:
            _log.warning("the link to the Spark UI could not be stored", exc_info=True)


def runs_driver_on_cluster(spark_conn_id: str) -> bool:
    """Whether drivers of this connection run on the cluster, and not in the worker."""
    extra = BaseHook.get_connection(spark_conn_id).extra_dejson
    return bool(extra.get("deploy-mode") == "cluster")


def _provider() -> Any:
    try:
        from delta_maintenance_airflow.spark import provider as spark_provider
    except ImportError as error:
        raise AirflowFailException(
            "the Apache Spark provider is missing: install delta-maintenance[airflow-spark], "
            "or use the local engine"
        ) from error
    _warn_of_mixed_versions()
    return spark_provider


def _warn_of_mixed_versions() -> None:
    """`pyspark` and `pyspark-client` contain the same files; the package installed last overwrites
    the other.
    """
    versions = {}
    for name in ("pyspark", "pyspark-client"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if len(set(versions.values())) > 1:
        _log.warning(
            "pyspark %s and pyspark-client %s have overwritten each other's files: install one "
            "version of both",
            versions["pyspark"],
            versions["pyspark-client"],
        )
