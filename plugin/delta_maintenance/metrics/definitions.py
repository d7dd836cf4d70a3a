"""Every metric with its kind, its unit and its labels: the only place that describes them.

The names also make sense without labels, because plain StatsD drops them: what matters by itself,
such as failures, has a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "delta_maintenance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric."""

    name: str
    """Without the prefix, and without a unit of time."""
    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    unit: Literal["", "bytes", "seconds", "ratio"] = ""
    help: str
    labels: tuple[str, ...] = ()

    @property
    def dotted(self) -> str:
        """The name in Airflow and OpenTelemetry."""
        return f"{PREFIX}.{self.name}"

    @property
    def in_prometheus(self) -> str:
        """The name in OpenMetrics, without the suffix of a counter; exporters of OpenTelemetry
        form the same.
        """
        name = f"{PREFIX}_{self.name}"
        is_named = not self.unit or name.endswith(f"_{self.unit}")
        return name if is_named else f"{name}_{self.unit}"


MOST_TABLES = 2_000
"""The number of tables above which there are only sums over all tables."""

TABLES = Metric(
    name="tables",
    labels=("status",),
    help="The tables of the policy by their status on the health page.",
)
UNLISTED = Metric(
    name="unlisted_patterns",
    help="Patterns and parts of catalogs that cannot be listed, so that their tables are unknown.",
)
OLDEST_ASSESSMENT = Metric(
    name="oldest_assessment_timestamp",
    unit="seconds",
    help="The time of the oldest among the last assessments of all tables, in seconds since 1970.",
)
WITHOUT_SERIES = Metric(
    name="tables_without_series",
    help=f"Tables without series of their own: all of them if there are more than {MOST_TABLES}.",
)

REPLAY_BYTES = Metric(
    name="replay_bytes",
    unit="bytes",
    help="Bytes of the log that a reader of the newest version opens, of all tables.",
)
COMMITS = Metric(
    name="commits_since_checkpoint",
    help="Commits after the last checkpoint, of all tables.",
)
SMALL_FILES = Metric(
    name="small_files_ratio",
    unit="ratio",
    help="The share of small files among the data files of all tables.",
)
RECLAIMABLE = Metric(
    name="reclaimable_bytes",
    unit="bytes",
    help="Bytes that a vacuum may delete, as far as the log tells, of all tables.",
)
FAILING = Metric(
    name="failing_tables",
    help="Tables that failed or whose assessment is unreadable, without acknowledged failures.",
)
WAITING = Metric(
    name="waiting_plans",
    help="Plans that wait for an approval, of all tables.",
)

TABLE_REPLAY_BYTES = Metric(
    name="table_replay_bytes",
    unit="bytes",
    labels=("table",),
    help="Bytes of the log that a reader of the newest version opens.",
)
TABLE_COMMITS = Metric(
    name="table_commits_since_checkpoint",
    labels=("table",),
    help="Commits after the last checkpoint.",
)
TABLE_SMALL_FILES = Metric(
    name="table_small_files_ratio",
    unit="ratio",
    labels=("table",),
    help="The share of small files among the data files.",
)
TABLE_RECLAIMABLE = Metric(
    name="table_reclaimable_bytes",
    unit="bytes",
    labels=("table",),
    help="Bytes that a vacuum may delete, as far as the log tells.",
)
TABLE_FAILING = Metric(
    name="table_failing",
    labels=("table",),
    help="1 if the table failed or its assessment is unreadable, and nobody acknowledged it.",
)
TABLE_WAITING = Metric(
    name="table_waiting_plans",
    labels=("table",),
    help="Plans that wait for an approval.",
)

OF_TABLES = (
    *(TABLES, UNLISTED, OLDEST_ASSESSMENT, WITHOUT_SERIES),
    *(REPLAY_BYTES, COMMITS, SMALL_FILES, RECLAIMABLE, FAILING, WAITING),
    *(TABLE_REPLAY_BYTES, TABLE_COMMITS, TABLE_SMALL_FILES, TABLE_RECLAIMABLE),
    *(TABLE_FAILING, TABLE_WAITING),
)
"""The metrics of the last assessments, in the order of the endpoint."""

RUNS = Metric(
    name="runs", kind="counter", labels=("status",), help="Runs on one table, by their status."
)
FAILED_RUNS = Metric(
    name="failed_runs",
    kind="counter",
    help="Runs on one table that failed, were stopped by a limit or are incomplete.",
)
OPERATIONS = Metric(
    name="operations",
    kind="counter",
    labels=("operation", "outcome"),
    help="Operations in runs, with those that were only planned for an approval.",
)
FAILED_OPERATIONS = Metric(
    name="failed_operations",
    kind="counter",
    labels=("operation",),
    help="Operations that failed, were stopped by a limit or are incomplete.",
)
DURATION = Metric(
    name="operation_duration",
    kind="histogram",
    unit="seconds",
    labels=("operation",),
    help="The time that an operation took.",
)
DELETED = Metric(
    name="deleted_bytes",
    kind="counter",
    unit="bytes",
    labels=("operation",),
    help="Bytes of files that operations deleted.",
)
REQUESTS = Metric(
    name="store_requests",
    kind="counter",
    labels=("class",),
    help="Requests to the stores of tables: read, write, list, delete or other. Without those of "
    "Spark jobs, and of stores that do not count them.",
)
READ = Metric(
    name="store_read_bytes",
    kind="counter",
    unit="bytes",
    help="Bytes read from the stores of tables, with the same exceptions.",
)
WRITTEN = Metric(
    name="store_written_bytes",
    kind="counter",
    unit="bytes",
    help="Bytes written to the stores of tables, with the same exceptions.",
)

OF_RUNS = (
    *(RUNS, FAILED_RUNS, OPERATIONS, FAILED_OPERATIONS, DURATION),
    *(DELETED, REQUESTS, READ, WRITTEN),
)
"""The metrics of runs, which the process of a run reports."""
