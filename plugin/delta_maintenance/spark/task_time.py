"""The time that the tasks of a Spark application have taken."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from delta_maintenance.spark.session import is_connected

_PATIENCE_MS = 10_000


class TaskTime:
    """Measures the tasks of a session from now on, also those that others run in it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._before = _task_seconds(spark)

    @property
    def seconds(self) -> float | None:
        """The time until now; None if the platform does not tell it, as with Spark Connect."""
        after = None if self._before is None else _task_seconds(self._spark)
        if self._before is None or after is None:
            return None
        return max(round(after - self._before, 3), 0.0)


def _task_seconds(spark: SparkSession) -> float | None:
    """Returns the time of all tasks that have ended in the application.

    From the store behind Spark's user interface, which exists without the interface. PySpark has
    no interface of its own for it.
    """
    if is_connected(spark):
        return None
    try:
        context: Any = spark.sparkContext._jsc.sc()
        # Ends of tasks arrive through a queue.
        context.listenerBus().waitUntilEmpty(_PATIENCE_MS)
        store = context.statusStore()
        executors = store.executorList(False)
        names = [executors.apply(index).id() for index in range(executors.size())]
        # The list states the time since the start for the driver, which runs the tasks in local
        # mode; the single summary does not.
        return float(sum(store.executorSummary(name).totalDuration() for name in names)) / 1000
    except Exception:
        # Hidden by the platform, or changed in a later version of Spark.
        return None
