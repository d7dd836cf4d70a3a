"""Runs an operation as a PySpark job, through the Apache Spark provider and one of its connections.

Nothing here knows Spark: the provider starts `spark-submit`, the job answers by a report file.
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

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import BaseHook

from delta_maintenance import clock, errors
from delta_maintenance.errors import DeltaMaintenanceError

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

_log = logging.getLogger(__name__)


class SparkSubmission:
    """One run of the Spark job.

    Credentials never reach the job's arguments, which anybody may read in the process list: they
    travel in the driver's environment, so only to a driver that runs in the worker.
    """

    def __init__(
        self, *, conn_id: str, conf: Mapping[str, Any] | None, report_folder: str | None
    ) -> None:
        self._conn_id = conn_id
        self._conf = conf
        self._report_folder = report_folder
        self._hook: SparkSubmitHook | None = None

    def run(
        self,
        operation: str,
        table_uri: str,
        job: Mapping[str, Any],
        *,
        storage_options: Mapping[str, str],
    ) -> dict[str, Any]:
        """Runs the job to its end and returns its Result as JSON.

        `job` is what the specification says beyond operation, table and storage options. Raises
        the error that the job reports; `AirflowFailException` where the job cannot be submitted
        like this; `AirflowException`, which is retried, where it ended without a report.
        """
        # Loads botocore's neighbourhood, which only a task that submits needs.
        from delta_maintenance.cli.spark_launcher import JOB, split_secrets

        on_cluster = self._deploy_mode() == "cluster"
        options, secrets = split_secrets(storage_options)
        if on_cluster and secrets:
            raise AirflowFailException(
                "credentials of an Airflow connection don't reach a driver on the cluster: give "
                "the job an identity of its own and leave delta_conn_id out"
            )
        spec = {"operation": operation, "table": table_uri, "storage_options": options, **job}
        with self._report(storage_options, on_cluster=on_cluster) as (address, read):
            self._hook = self._make_hook(
                ["--spec", json.dumps(spec), "--report", address], f"delta-maintenance {operation}"
            )
            failure = self._submit(os.fspath(JOB), _environment(secrets))
            try:
                report = json.loads(read())
            except FileNotFoundError:
                raise failure or AirflowException(
                    "the Spark job ended well, but without a report"
                ) from None
        return _result(report)

    def kill(self) -> None:
        """Ends the job; may come at any moment, from a signal handler."""
        if self._hook is not None:
            self._hook.on_kill()

    def _deploy_mode(self) -> str:
        # The provider takes an unknown connection for YARN; better to fail here, by its name.
        connection = BaseHook.get_connection(self._conn_id)
        return str(connection.extra_dejson.get("deploy-mode") or "client")

    @contextmanager
    def _report(
        self, storage_options: Mapping[str, str], *, on_cluster: bool
    ) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Where the job shall leave its report, and how to read it there."""
        name = f"{clock.new_id()}.json"
        if self._report_folder:
            from delta_maintenance.storage import open_store

            store = open_store(self._report_folder, storage_options or None)
            # A new name for each try: the report of an earlier one must not answer for this one.
            yield f"{self._report_folder.rstrip('/')}/{name}", lambda: store.read(name)
        elif on_cluster:
            raise AirflowFailException(
                "a driver on the cluster cannot leave its report in this worker: give report_folder"
            )
        else:
            with tempfile.TemporaryDirectory(prefix="delta-maintenance-") as folder:
                file = Path(folder, name)
                yield os.fspath(file), file.read_bytes

    def _make_hook(self, arguments: list[str], name: str) -> SparkSubmitHook:
        try:
            from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
        except ImportError as error:
            raise AirflowFailException(
                "the Apache Spark provider is missing: install delta-maintenance[airflow-spark], "
                "or use the local engine"
            ) from error
        return SparkSubmitHook(
            conn_id=self._conn_id,
            conf=dict(self._conf or {}),
            name=name,
            application_args=arguments,
        )

    def _submit(self, application: str, environment: dict[str, str]) -> AirflowException | None:
        """Runs `spark-submit` to its end; returns its failure, which the report may explain."""
        assert self._hook is not None
        _log.info("::group::Log of the Spark job")
        try:
            self._hook.submit(application, env=environment)
        except FileNotFoundError as error:
            raise AirflowFailException(
                f"there is no {error.filename} on this worker: install "
                "delta-maintenance[airflow-spark], or put Spark's bin folder on PATH"
            ) from error
        except AirflowException as error:
            return error
        finally:
            _log.info("::endgroup::")
        return None


def _environment(secrets: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of `spark-submit`, which a driver in the worker inherits.

    None among the secrets stands for a variable that must not be inherited.
    """
    environment = {
        **os.environ,
        # Last: a Spark that the worker has by other means comes first.
        "PATH": os.pathsep.join(
            [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)]
        ),
        # The driver needs this Python's packages, ours among them.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **{name: value for name, value in secrets.items() if value is not None},
    }
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    for name, value in secrets.items():
        if value is None:
            environment.pop(name, None)
    return environment


def _result(report: Mapping[str, Any]) -> dict[str, Any]:
    if "error" not in report:
        result: dict[str, Any] = report["result"]
        return result
    told = report["error"]
    kind = getattr(errors, told["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, DeltaMaintenanceError)):
        kind = DeltaMaintenanceError
    raise kind(
        told["problem"],
        table=told.get("table"),
        version=told.get("version"),
        file=told.get("file"),
        remedy=told.get("remedy"),
    )
