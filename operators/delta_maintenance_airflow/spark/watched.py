"""Deferred Spark jobs from the view of the triggerer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.spark.deferral import DeferredJob
from delta_maintenance_airflow.spark.mailbox import SECONDS_UNTIL_LOST, JobState, Mailbox

_ENDED = {"status": "ended"}


@dataclass(frozen=True, slots=True)
class News:
    """The changes of a job since the last call."""

    lines: tuple[str, ...] = ()
    """Lines for the log of the task."""
    event: dict[str, Any] | None = None
    """The event of the trigger, if the job has ended or is lost."""


class WatchedJob(Protocol):
    """A job that runs elsewhere. All methods block."""

    def look(self) -> News:
        """Returns the changes since the last call."""

    def end(self) -> None:
        """Ends the job, or requests its end."""


def watched_job(job: DeferredJob) -> WatchedJob:
    """Returns the job, accessed with the connections that it names."""
    if job.application is not None:
        return _OnCluster(job.spark_conn_id, job.application)
    return WaitedFor(job.mailbox(DeltaHook(job.delta_conn_id)))


class WaitedFor:
    """A job whose driver runs on a worker, below a waiter."""

    def __init__(self, mailbox: Mailbox, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._mailbox = mailbox
        self._monotonic = monotonic
        self._last: JobState | None = None
        self._changed = monotonic()

    def look(self) -> News:
        """Reads the state that the waiter has written since the last call."""
        state, last = self._mailbox.read(), self._last
        if state is not None and state.ended:
            return News(_new_lines(state, last), _ENDED)
        if state is not None and (last is None or state.beat != last.beat):
            self._last, self._changed = state, self._monotonic()
            return News(_new_lines(state, last))
        silence = self._monotonic() - self._changed
        if silence < SECONDS_UNTIL_LOST:
            return News()
        message = (
            f"the Spark driver is lost: its worker has given no sign for {silence:.0f} s; "
            "another try is safe"
        )
        return News(event={"status": "lost", "message": message})

    def end(self) -> None:
        """Requests the end of the driver, which the waiter ends within seconds."""
        self._mailbox.request_end()


class _OnCluster:
    """An application whose state the cluster manager reports."""

    def __init__(self, spark_conn_id: str, application: str) -> None:
        # Requires the Apache Spark provider, which the other kind of job does not need.
        from delta_maintenance_airflow.spark.provider import ClusterApplication

        self._application = ClusterApplication(spark_conn_id, application)

    def look(self) -> News:
        return News() if self._application.is_active() else News(event=_ENDED)

    def end(self) -> None:
        self._application.end()


def _new_lines(state: JobState, last: JobState | None) -> tuple[str, ...]:
    lines = []
    if state.interface is not None and (last is None or state.interface != last.interface):
        lines.append(f"Spark UI: {state.interface}")
    if state.progress is not None and (last is None or state.progress != last.progress):
        lines.append(state.progress)
    return tuple(lines)
