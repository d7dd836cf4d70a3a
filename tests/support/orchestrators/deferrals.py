"""Tasks that are deferred while a Spark job works, played without a triggerer."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance_airflow.triggers.spark_job import DeltaSparkJobTrigger
from tests.support.orchestrators.airflow_versions import TaskDeferred
from tests.support.orchestrators.fake_spark import FakeSpark, wait_for

LIVES = "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
"""A driver that works for long, and does not listen to SIGTERM."""


def deferred(task: Any, context: dict[str, Any]) -> TaskDeferred:
    """How the task lets go of its worker."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context)
    # All of it goes through Airflow's database.
    path, arguments = caught.value.trigger.serialize()
    assert json.loads(json.dumps([path, arguments])) == [path, arguments]
    assert path.endswith("triggers.spark_job.DeltaSparkJobTrigger")
    assert not caught.value.kwargs
    return caught.value


def driver_of(spark: FakeSpark) -> int:
    """The process of the driver, once it has started."""
    wait_for(lambda: spark.starts)
    [start] = spark.starts
    assert start["stdin"] == "/dev/null"
    return int(start["pid"])


def event_of(trigger: Any) -> dict[str, Any]:
    """The event of the trigger, as a triggerer would get it."""
    again = DeltaSparkJobTrigger(**trigger.serialize()[1])

    async def first() -> Any:
        async with asyncio.timeout(120):
            return await anext(again.run())

    event: dict[str, Any] = asyncio.run(first()).payload
    return event


def resumed(task: Any, context: dict[str, Any], deferral: TaskDeferred) -> Any:
    return task.execute_complete(context, event_of(deferral.trigger))


def is_clean(folder: Path) -> bool:
    """Whether only reports are left, and nothing on the worker."""
    # Unlike `Path.rglob`, `os.walk` tolerates folders that the waiter removes in the meantime.
    left = [name for _, _, names in os.walk(os.environ["TMPDIR"]) for name in names]
    return not left and all(path.suffix == ".json" for path in folder.iterdir())
