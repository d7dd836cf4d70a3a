"""The session that a Spark job passes to the engine of its operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from delta_maintenance.clock import NewId
from delta_maintenance.table.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSession:
    """A Spark session, and the table of the job."""

    spark: SparkSession
    table_uri: str
    """An address that the driver and every executor can reach."""
    storage_options: Mapping[str, str]
    new_id: NewId
    """Must be picklable, because engines may call it on executors."""
    progress: Progress
    """Called in the driver."""
