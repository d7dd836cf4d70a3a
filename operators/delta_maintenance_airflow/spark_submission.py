"""Runs an operation as a PySpark job, through the Apache Spark provider and one of its connections.

The provider starts `spark-submit` and ends it; what the job is told and what it answers is
`delta_maintenance.spark.submit`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from delta_maintenance import clock
from delta_maintenance_airflow.compat import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from delta_maintenance.spark.submit import JobReport, JobSpec
    from delta_maintenance_airflow.hooks.delta import DeltaHook

_log = logging.getLogger(__name__)


class SparkSubmission:
    """One run of a Spark job.

    Credentials never stand in the job's arguments, which the process list and Airflow's log show:
    a driver in the worker reads them from a private file, a driver on the cluster has its own.
    """

    def __init__(
        self,
        *,
        spark_conn_id: str,
        spark_conf: Mapping[str, Any] | None,
        delta_hook: DeltaHook,
        report_folder: str | None,
    ) -> None:
        self._spark_conn_id = spark_conn_id
        self._spark_conf = spark_conf
        self._delta_hook = delta_hook
        self._report_folder = report_folder
        self._spark_hook: SparkSubmitHook | None = None

    def run(
        self,
        operation: str,
        table_uri: str,
        options: Mapping[str, Any],
        *,
        version: int | None = None,
        report_uri: str | None = None,
        plan_only: bool = False,
    ) -> dict[str, Any]:
        """Runs the job to its end and returns the JSON of its Result, or of its Plan.

        `version`, `report_uri` and `plan_only` are as of `JobSpec`.
        Raises the error that the job reports; `AirflowFailException` where it cannot be submitted
        like this; `AirflowException`, for Airflow to retry, where it ended without a report.
        """
        # Loads pydantic, which the parsing of DAGs must not wait for.
        from delta_maintenance.spark.submit import APPLICATION, JobSpec

        on_cluster = self._deploy_mode() == "cluster"
        spec = JobSpec.from_json(
            {
                "operation": operation,
                "table": table_uri,
                "version": version,
                "storage_options": self._delta_hook.storage_options(credentials=not on_cluster),
                "options": dict(options),
                "report_uri": report_uri,
                "plan_only": plan_only,
            }
        )
        with tempfile.TemporaryDirectory(prefix="delta-maintenance-") as scratch:
            report, read_report = self._report(Path(scratch), on_cluster=on_cluster)
            self._spark_hook = self._make_hook(
                arguments=["--spec", _argument(spec, Path(scratch), on_cluster=on_cluster)]
                + ["--report", report],
                name=f"delta-maintenance {operation}",
            )
            failure = self._submit(os.fspath(APPLICATION))
            # Over: from here on a kill has nothing to end.
            self._spark_hook = None
            try:
                return read_report().result_or_raise()
            except FileNotFoundError:
                raise failure or AirflowException(
                    "the Spark job ended well, but without a report"
                ) from None

    def kill(self) -> None:
        """Ends the job; may come at any moment, from a signal handler."""
        if self._spark_hook is not None:
            self._spark_hook.on_kill()

    def _deploy_mode(self) -> str:
        # The provider takes an unknown connection for YARN; better to fail here, by its name.
        connection = BaseHook.get_connection(self._spark_conn_id)
        return str(connection.extra_dejson.get("deploy-mode") or "client")

    def _report(self, scratch: Path, *, on_cluster: bool) -> tuple[str, Callable[[], JobReport]]:
        """Where the job shall leave its report, and how to read it there."""
        from delta_maintenance.spark.submit import JobReport, read_report

        if not self._report_folder:
            if on_cluster:
                raise AirflowFailException(
                    "a driver on the cluster cannot leave its report in this worker: "
                    "give report_folder"
                )
            file = scratch / "report.json"
            return os.fspath(file), lambda: read_report(file)

        from delta_maintenance.storage import open_store

        folder = self._report_folder
        store = open_store(folder, self._delta_hook.options_for(folder))
        # A new name for each try: the report of an earlier one must not answer for this one.
        name = f"{clock.new_id()}.json"
        address = f"{folder.rstrip('/')}/{name}"
        return address, lambda: JobReport.from_json(json.loads(store.read(name)))

    def _make_hook(self, *, arguments: list[str], name: str) -> SparkSubmitHook:
        try:
            from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
        except ImportError as error:
            raise AirflowFailException(
                "the Apache Spark provider is missing: install delta-maintenance[airflow-spark], "
                "or use the local engine"
            ) from error
        return SparkSubmitHook(
            conn_id=self._spark_conn_id,
            conf=dict(self._spark_conf or {}),
            name=name,
            application_args=arguments,
        )

    def _submit(self, application: str) -> AirflowException | None:
        """Runs `spark-submit` to its end; returns its failure, which the report may explain."""
        assert self._spark_hook is not None
        with _folded("Log of the Spark job"):
            try:
                self._spark_hook.submit(application, env=_environment())
            except FileNotFoundError as error:
                raise AirflowFailException(
                    f"there is no {error.filename} on this worker: install "
                    "delta-maintenance[airflow-spark], or put Spark's bin folder on PATH"
                ) from error
            except AirflowException as error:
                return error
        return None


def _argument(spec: JobSpec, scratch: Path, *, on_cluster: bool) -> str:
    # No file of this worker is on the cluster; what goes there holds no credentials.
    return json.dumps(spec.to_json()) if on_cluster else spec.write(scratch / "spec.json")


def _environment() -> dict[str, str]:
    """The environment of `spark-submit`, which a driver in the worker inherits."""
    # The Spark of this Python comes last: one that the worker has by other means comes first.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
    return {
        "PYSPARK_PYTHON": sys.executable,
        **os.environ,
        "PATH": path,
        # The driver needs this Python's packages, ours among them.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def _folded(title: str) -> Iterator[None]:
    """Airflow shows what is logged meanwhile as one line, to be opened."""
    _log.info("::group::%s", title)
    try:
        yield
    finally:
        _log.info("::endgroup::")
