"""The trigger of deferred Spark jobs: waits in the triggerer for the end of a driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol, Self

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import AirflowException, is_task_deferred
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.settings import assessment_store, leases
from delta_maintenance_airflow.spark.deferral import DeferredJob, JobDeferredError
from delta_maintenance_airflow.spark.waiting import SECONDS_UNTIL_LOST, JobState, Mailbox

SECONDS_BETWEEN_POLLS = 10.0
_IS_TOLD_OF_KILLS = hasattr(BaseTrigger, "on_kill")
"""Whether Airflow notifies a trigger when a user ends its task: since 3.3."""
_MOST_FAILURES = 30
"""The number of consecutive failed requests after which the job counts as lost."""


class DeltaSparkJobTrigger(BaseTrigger):
    """Waits for the end of a Spark job, then fires once.

    The event is `{"status", "job", "run"}`. The status is `ended`; `lost`, if nothing is known of
    the driver any more; or `timeout`, if the job was ended at the deadline; the last two with a
    `message`. The task reads the report of the job in each case. If a user clears the task, or sets
    its state, the job is ended. If the triggerer ends, the job runs on, and the next triggerer
    waits for it. Meanwhile the lease of the table is renewed.

    :param job: the job: `spark.deferral.DeferredJob` as JSON.
    :param deadline: the time at which the job is ended, in seconds since 1970; None for no limit.
    :param poll_interval: seconds between two polls.
    :param lease: the `name` of the table and the `holder` of its lease, if the task may have one.
    :param run: the state of the run that continues after the job: `policies.models.PausedRun` as
        JSON. Part of the event.
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        deadline: float | None = None,
        poll_interval: float = 10.0,
        lease: Mapping[str, str] | None = None,
        run: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        self.job = dict(job)
        self.deadline = deadline
        self.poll_interval = poll_interval
        self.lease = dict(lease) if lease is not None else None
        # Not named `run`, which is a method of the trigger.
        self.paused_run = dict(run) if run is not None else None
        self._renew_at = 0.0

    @classmethod
    def of(
        cls,
        left: JobDeferredError,
        *,
        timeout: timedelta | None,
        lease: Mapping[str, str] | None = None,
    ) -> Self:
        """Returns the trigger that waits for the job, ends it after `timeout`, and keeps
        the lease.
        """
        return cls(
            job=asdict(left.job),
            deadline=None if timeout is None else (clock.now() + timeout).timestamp(),
            poll_interval=SECONDS_BETWEEN_POLLS,
            lease=lease,
            run=None if left.run is None else left.run.to_json(),
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "job": self.job,
                "deadline": self.deadline,
                "poll_interval": self.poll_interval,
                "lease": self.lease,
                "run": self.paused_run,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            payload = await self._waited()
        except asyncio.CancelledError:
            # Without this check, the cause may also be the end of the triggerer.
            if not _IS_TOLD_OF_KILLS and not await is_task_deferred(self.task_instance):
                await self.on_kill()
            raise
        except (DeltaMaintenanceError, AirflowException) as error:
            payload = {"status": "lost", "message": str(error)}
        event = {**payload, "job": self.job, "run": self.paused_run}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # untyped

    async def on_kill(self) -> None:
        """Ends the job. Airflow calls this when a user clears the task or sets its state."""
        self.log.info("ending the Spark job")
        watched = await sync_to_async(self._open)()
        await sync_to_async(watched.end)()
        await sync_to_async(self._release_lease)()

    async def _waited(self) -> dict[str, Any]:
        watched = await sync_to_async(self._open)()
        failures = 0
        while True:
            await sync_to_async(self._renew_lease)()
            try:
                update = await sync_to_async(watched.poll)()
            except Exception as error:
                # Errors of the store, the cluster manager, or their clients, which have many
                # classes.
                failures += 1
                if failures >= _MOST_FAILURES:
                    return {"status": "lost", "message": f"the Spark job is lost: {error}"}
                self.log.warning("the state of the Spark job is unknown: %s", error)
                update = JobUpdate()
            else:
                failures = 0
            for line in update.lines:
                self.log.info("%s", line)
            if update.event is not None:
                return update.event
            if self.deadline is not None and clock.now().timestamp() >= self.deadline:
                await sync_to_async(watched.end)()
                return {
                    "status": "timeout",
                    "message": "the Spark job took longer than execution_timeout and was ended",
                }
            await asyncio.sleep(self.poll_interval)

    def _renew_lease(self) -> None:
        if self.lease is None or time.monotonic() < self._renew_at:
            return
        kept = leases(assessment_store())
        kept.renew(**self.lease)
        self._renew_at = time.monotonic() + kept.renewal_interval.total_seconds()

    def _release_lease(self) -> None:
        if self.lease is not None:
            leases(assessment_store()).release(**self.lease)

    def _open(self) -> WatchedJob:
        return watched_job(DeferredJob(**self.job))


_ENDED = {"status": "ended"}


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """The changes of a job since the last call."""

    lines: tuple[str, ...] = ()
    """Lines for the log of the task."""
    event: dict[str, Any] | None = None
    """The event of the trigger, if the job has ended or is lost."""


class WatchedJob(Protocol):
    """A job that runs elsewhere. All methods block."""

    def poll(self) -> JobUpdate:
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

    def poll(self) -> JobUpdate:
        """Reads the state that the waiter has written since the last call."""
        state, last = self._mailbox.read(), self._last
        if state is not None and state.ended:
            return JobUpdate(_new_lines(state, last), _ENDED)
        if state is not None and (last is None or state.number != last.number):
            self._last, self._changed = state, self._monotonic()
            return JobUpdate(_new_lines(state, last))
        silence = self._monotonic() - self._changed
        if silence < SECONDS_UNTIL_LOST:
            return JobUpdate()
        message = (
            f"the Spark driver is lost: its worker has given no sign for {silence:.0f} s; "
            "another try is safe"
        )
        return JobUpdate(event={"status": "lost", "message": message})

    def end(self) -> None:
        """Requests the end of the driver, which the waiter ends within seconds."""
        self._mailbox.request_end()


class _OnCluster:
    """An application whose state the cluster manager reports."""

    def __init__(self, spark_conn_id: str, application: str) -> None:
        # Requires the Apache Spark provider, which the other kind of job does not need.
        from delta_maintenance_airflow.spark.provider import ClusterApplication

        self._application = ClusterApplication(spark_conn_id, application)

    def poll(self) -> JobUpdate:
        return JobUpdate() if self._application.is_active() else JobUpdate(event=_ENDED)

    def end(self) -> None:
        self._application.end()


def _new_lines(state: JobState, last: JobState | None) -> tuple[str, ...]:
    lines = []
    if state.interface is not None and (last is None or state.interface != last.interface):
        lines.append(f"Spark UI: {state.interface}")
    if state.progress is not None and (last is None or state.progress != last.progress):
        lines.append(state.progress)
    return tuple(lines)
