"""The trigger of deferred Spark jobs: waits in the triggerer for the end of a driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance_airflow.compat import AirflowException, is_task_deferred
from delta_maintenance_airflow.settings import assessment_store, leases
from delta_maintenance_airflow.spark.deferral import DeferredJob
from delta_maintenance_airflow.spark.watched import News, WatchedJob, watched_job

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
                news = await sync_to_async(watched.look)()
            except Exception as error:
                # Errors of the store, the cluster manager, or their clients, which have many
                # classes.
                failures += 1
                if failures >= _MOST_FAILURES:
                    return {"status": "lost", "message": f"the Spark job is lost: {error}"}
                self.log.warning("the state of the Spark job is unknown: %s", error)
                news = News()
            else:
                failures = 0
            for line in news.lines:
                self.log.info("%s", line)
            if news.event is not None:
                return news.event
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
