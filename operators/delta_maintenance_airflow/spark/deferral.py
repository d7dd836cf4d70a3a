"""Spark jobs whose tasks wait in the triggerer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta_maintenance.submission import JobLeftRunningError
from delta_maintenance_airflow.spark.waiting import Mailbox, Order, WaiterProcess

if TYPE_CHECKING:
    from delta_maintenance_airflow.hooks.delta import DeltaHook
    from delta_maintenance_airflow.spark.folder import JobFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJob:
    """A job that runs while its task is deferred. Airflow stores it; it has no credentials."""

    key: str
    """The key of the submission, by which its reports are found."""
    name: str
    """The name of the job in the report folder."""
    report_folder: str
    delta_conn_id: str | None = None
    """The connection with access to the report folder."""
    spark_conn_id: str
    application: str | None = None
    """The ID of an application whose state the cluster reports; None if a waiter on the worker
    reports it.
    """

    def mailbox(self, hook: DeltaHook) -> Mailbox:
        """Returns the files for communication with the waiter."""
        from delta_maintenance.storage import open_store

        options = hook.options_for(self.report_folder)
        return Mailbox(open_store(self.report_folder, options), self.name)


class JobDeferredError(JobLeftRunningError):
    """Ends the code of a submission whose job continues without the task."""

    def __init__(self, job: DeferredJob) -> None:
        super().__init__(job.name)
        self.job = job


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """Whether a task releases its worker while its job runs."""

    required: bool
    """Whether the operator requests deferral. Otherwise the deployment does, and the worker waits
    for a job that cannot be deferred.
    """

    def obstacle(self, *, connection: Any, report_folder: str | None, followed: bool) -> str | None:
        """Returns the reason why a job cannot be deferred; None if it can."""
        if not report_folder:
            return (
                "worker and triggerer need a folder in common for its report: give report_folder, "
                "or [delta_maintenance] report_folder"
            )
        if followed:
            return None
        if connection.extra_dejson.get("deploy-mode") == "cluster":
            return (
                "its driver on the cluster can only be followed with Airflow 3.3, on YARN with "
                "yarn_resourcemanager_webapp_address, or on Kubernetes with a namespace"
            )
        if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
            return "its driver would end with the pod of the task: use the deploy mode cluster"
        return None


def start_waiter(
    command: Sequence[str],
    *,
    job: DeferredJob,
    delta_hook: DeltaHook,
    process: Mapping[str, Any],
    folder: JobFolder,
    key: str,
    on_start: Callable[[WaiterProcess], None],
) -> None:
    """Starts the driver with this command below a waiter, which gets the folder of the task.

    `on_start` is called with the waiter, which must be ended if the task is killed from then on.
    """
    [lock] = process["pass_fds"]
    order = Order(
        command=tuple(command),
        key=key,
        lock=lock,
        report_folder=job.report_folder,
        storage_options=delta_hook.options_for(job.report_folder) or {},
        name=job.name,
    )
    waiter = WaiterProcess.start(order, process["env"])
    on_start(waiter)
    folder.hand_over()
    waiter.forget()
