"""Runs a job on a Spark Connect server, in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from delta_maintenance_airflow.compat import AirflowFailException

if TYPE_CHECKING:
    from delta_maintenance.submission.job_report import JobReport
    from delta_maintenance.submission.job_spec import JobSpec

_log = logging.getLogger(__name__)


class ConnectedJob:
    """One job through a connection of the type `spark_connect`.

    The driver is the process that runs the job, so it commits nothing after the end of this
    process.
    """

    def __init__(self, spark_conn_id: str) -> None:
        self._spark_conn_id = spark_conn_id
        self._session: Any = None

    def run(self, spec: JobSpec) -> JobReport:
        """Runs the job to its end. Raises `AirflowFailException` if PySpark is missing."""
        with _told_what_is_missing():
            from delta_maintenance.spark.job import run
            from delta_maintenance.spark.session import open_connection
        from delta_maintenance.errors import DeltaMaintenanceError
        from delta_maintenance.submission.job_report import JobReport

        address = self._address()
        try:
            with open_connection(address) as self._session:
                result = run(spec, self._session)
                return JobReport(status="done", result=result, report_uri=spec.report_uri)
        except DeltaMaintenanceError:
            raise
        except Exception as error:
            # Errors of Spark are long: the log has all of it, the task one line.
            _log.exception("the job failed on the server")
            return JobReport.of_error(error)
        finally:
            self._session = None

    def _address(self) -> str:
        with _told_what_is_missing():
            from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

            import_module("pyspark.sql")
        return str(SparkConnectHook(self._spark_conn_id).get_connection_url())

    def on_kill(self) -> None:
        """Interrupts the work of this job on the server."""
        session = self._session
        if session is not None:
            try:
                session.interruptAll()
            except Exception:
                _log.warning("the server could not be asked to end the job", exc_info=True)


@contextmanager
def _told_what_is_missing() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise AirflowFailException(
            "the Apache Spark provider or PySpark is missing: install "
            "delta-maintenance[airflow-spark], or use the local engine"
        ) from error
