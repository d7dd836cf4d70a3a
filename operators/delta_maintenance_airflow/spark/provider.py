"""The parts of the Apache Spark provider in use. Importing this module requires the provider."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from delta_maintenance.submission.job_report import DriverLine
from delta_maintenance_airflow.compat import HAS_TASK_STATE
from delta_maintenance_airflow.spark.folder import end_group

_HOOK_SETTINGS = inspect.signature(SparkSubmitHook.__init__).parameters


class JobHook(SparkSubmitHook):
    """The provider's hook with control over its process and its output.

    :param output: receives every line that `spark-submit` prints.
    :param process: further arguments of `subprocess.Popen`.
    :param on_start: called with the process group, once there is a first line.
    """

    def __init__(
        self,
        *,
        output: JobOutput,
        process: Mapping[str, Any],
        on_start: Callable[[int], None] = lambda _: None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._output = output
        self._process = process
        self._on_start = on_start

    def submit(self, application: str = "", **more: Any) -> str | None:
        try:
            # In a separate process group, so that the whole driver can be ended.
            return super().submit(application, start_new_session=True, **{**self._process, **more})
        finally:
            # The provider reads the output to its end without closing it.
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()

    def on_kill(self) -> None:
        process = self._submit_sp
        if process is not None and process.poll() is None:
            end_group(process.pid, process.poll)
        super().on_kill()

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._output.sift(self._begun(itr)))

    def _begun(self, lines: Iterator[Any]) -> Iterator[Any]:
        for number, line in enumerate(lines):
            if number == 0 and self._submit_sp is not None:
                self._on_start(self._submit_sp.pid)
            yield line


def can_be_followed(hook: SparkSubmitHook) -> bool:
    """Whether the provider can follow a driver on the cluster by its ID, in any later process."""
    connection = hook._connection
    if not HAS_TASK_STATE or connection["deploy_mode"] != "cluster":
        return False
    if hook._is_yarn:
        extra = hook.get_connection(hook._conn_id).extra_dejson
        knows_manager = bool(extra.get("yarn_resourcemanager_webapp_address"))
        return "yarn_track_via_rm_api" in _HOOK_SETTINGS and knows_manager
    if hook._is_kubernetes:
        return "track_driver_via_k8s_api" in _HOOK_SETTINGS and bool(connection["namespace"])
    return False


class FollowedJob(SparkSubmitOperator):
    """Submits a job to a cluster and waits for it; a later try of the task continues to wait.

    Its state is stored under `key`, so that a cleared task does not find it.
    """

    def __init__(self, *, key: str, settings: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__(durable=True, **arguments)
        self._settings = settings
        self.external_id_key, self._K8S_DRIVER_STATUS_KEY = _state_keys(key)

    def _get_hook(self) -> JobHook:
        hook = JobHook(**self._settings)
        followed = "yarn_track_via_rm_api" if hook._is_yarn else "track_driver_via_k8s_api"
        settings = {**self._settings, followed: True}
        return JobHook(**settings)


def forget_application(context: Any, key: str) -> None:
    """Deletes the state of a `FollowedJob`, so that the next try submits a new job."""
    store = context.get("task_state_store")
    if store is not None:
        for name in _state_keys(key):
            store.delete(name)


def _state_keys(key: str) -> tuple[str, str]:
    return f"spark_job_{key}", f"k8s_driver_status_{key}"


_log = logging.getLogger(__name__)
_TITLE = "Log of Spark"
_YARN_INTERFACE = re.compile(r"tracking URL: (https?://\S+)")


class JobOutput:
    """Sorts the output of `spark-submit`: lines for people are logged, Spark's own are folded.

    `on_interface` is called with the address of the application's user interface when it becomes
    known, and whenever it changes.
    """

    def __init__(self, on_interface: Callable[[str], None]) -> None:
        self._on_interface = on_interface
        self._interface: str | None = None
        self._is_folded = False

    def sift(self, lines: Iterable[str]) -> Iterator[str]:
        """Logs the lines for people and yields those of Spark."""
        try:
            for line in map(DriverLine.read, lines):
                if line.message is not None:
                    self._fold(False)
                    _log.info("%s", line.message)
                    continue
                if line.is_report:
                    continue
                self._look_for_interface(line)
                if not line.is_application:
                    self._fold(True)
                    yield line.text
        finally:
            self._fold(False)

    def _look_for_interface(self, line: DriverLine) -> None:
        address = line.interface
        if match := _YARN_INTERFACE.search(line.text):
            address = match[1]
        if address is not None and address != self._interface:
            self._interface = address
            self._fold(False)
            _log.info("Spark UI: %s", address)
            self._on_interface(address)

    def _fold(self, folded: bool) -> None:
        """Airflow shows the lines between these markers as one line, which can be opened."""
        if folded is not self._is_folded:
            _log.info("::group::%s" if folded else "::endgroup::", *([_TITLE] if folded else []))
            self._is_folded = folded
