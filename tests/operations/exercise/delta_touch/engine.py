"""The engine of `touch` on Spark."""

from __future__ import annotations

from dataclasses import dataclass

from delta_maintenance.spark import JobSession


@dataclass(frozen=True)
class SparkTouch:
    """Counts one row on an executor, and names the release of Spark."""

    job: JobSession

    def name(self) -> str:
        """The name of the engine, for the history."""
        rows = self.job.spark.range(1).count()
        return f"Spark {self.job.spark.version}, {rows} row"
